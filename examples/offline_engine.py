"""The engine without a gateway: a batch of prompts, a chat, and an answer bound to a form.

    .venv/bin/esclusa models fetch smollm2-135m-instruct
    .venv/bin/python examples/offline_engine.py ~/.cache/esclusa/models/SmolLM2-135M-Instruct.Q4_1.gguf

Any folder with `config.json` and safetensors of a supported family works too: docs/concepts/models.md. What else `LLM`
takes and gives is in docs/guides/offline.md.
"""

from __future__ import annotations

import sys

from engine import LLM, Grammar, SamplingParams

PROMPTS = ["Lima is the capital of", "The opposite of hot is", "One, two, three,"]


def main(model: str) -> int:
    with LLM(model=model, max_model_len=256, kv_cache_bytes=64 << 20) as llm:
        for output in llm.generate(PROMPTS, SamplingParams(temperature=0.0, max_tokens=12), use_tqdm=False):
            print(f"{output.prompt!r} -> {output.outputs[0].text!r}")

        (reply,) = llm.chat(
            [{"role": "user", "content": "Hello!"}], SamplingParams(max_tokens=24, seed=7), use_tqdm=False
        )
        print(f"chat -> {reply.outputs[0].text!r} ({reply.outputs[0].finish_reason})")

        form = SamplingParams(temperature=0.0, max_tokens=8, grammar=Grammar("regex", "yes|no"))
        (answer,) = llm.generate("Is water wet? Answer:", form, use_tqdm=False)
        print(f"yes or no -> {answer.outputs[0].text!r}")
    return 0


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    sys.exit(main(sys.argv[1]))
