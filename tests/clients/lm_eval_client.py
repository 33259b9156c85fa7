"""lm-evaluation-harness: log-likelihoods over completions with its defaults (token ids), and generation over chat.

That the values are those of Hugging Face's own implementation is held in `tests/contract/test_echo.py`, for a model
whose weights both have. Here the ids are of another model's tokenizer: it shows that the harness runs as it comes.
"""

from __future__ import annotations

import os

from report import BASE, CHAT, KEY, run

os.environ["OPENAI_API_KEY"] = KEY
from lm_eval.api.instance import Instance
from lm_eval.models.api_models import JsonChatStr
from lm_eval.models.openai_completions import LocalChatCompletion, LocalCompletionsAPI

PAIRS = [("The capital of France is", " Paris"), ("The capital of France is", " banana")]


def loglikelihood() -> None:
    model = LocalCompletionsAPI(
        base_url=f"{BASE}/completions",
        model=CHAT,
        tokenizer=os.environ["ESCLUSA_TOKENIZER"],
        max_retries=1,
        batch_size=2,
    )
    found = model.loglikelihood([Instance("loglikelihood", {}, pair, number) for number, pair in enumerate(PAIRS)])
    assert all(score < 0 for score, _ in found)


def generate() -> None:
    model = LocalChatCompletion(base_url=f"{BASE}/chat/completions", model=CHAT, max_retries=1)
    asked = (JsonChatStr('[{"role": "user", "content": "Say hello."}]'), {"max_gen_toks": 8, "until": ["\n\n"]})
    assert model.generate_until([Instance("generate_until", {}, asked, 0)])[0]


run("lm-eval", "lm_eval", {"local-completions loglikelihood": loglikelihood, "local-chat-completions": generate})
