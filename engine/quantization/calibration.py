"""A text to calibrate on where none is given: what the model itself writes, sampled from a few beginnings."""

from __future__ import annotations

from engine.quantization.request import QuantizeRequest
from engine.requests import SamplingParams
from engine.serving.llm import LLM

BEGINNINGS = (
    "The ", "In ", "A ", "How ", "If you ", "It is ", "La ", "En ", "El ", "Para ", "O ", "def ", "import ", "{\n  \"",
    "1. ", "# ",
)  # fmt: skip
"""English, Spanish and Portuguese prose, code, data, lists and headings."""


def own_words(request: QuantizeRequest) -> str:
    """`request.windows` answers of `request.window_tokens` tokens, the same each time."""
    prompts = [BEGINNINGS[number % len(BEGINNINGS)] for number in range(request.windows)]
    parameters = [
        SamplingParams(max_tokens=request.window_tokens, temperature=1.0, top_p=0.95, seed=number, ignore_eos=True)
        for number in range(request.windows)
    ]
    length = request.window_tokens + 16
    llm = LLM(request.model, max_num_seqs=min(32, request.windows), max_model_len=length)
    try:
        outputs = llm.generate(prompts, parameters, use_tqdm=False)
    finally:
        llm.close()
    return "\n".join(prompt + output.outputs[0].text for prompt, output in zip(prompts, outputs, strict=True))
