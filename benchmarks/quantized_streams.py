"""One stream of each quantized form of a model, in turn, beside that of int8.

    python -m benchmarks.quantized_streams MODEL.gguf AWQ_DIR GPTQ_DIR ...

The directories are what `esclusa quantize MODEL.gguf --to ...` wrote.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path

from engine import LLM, SamplingParams

PROMPT = "La esclusa"
ROUNDS = 4


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model", help="a GGUF file: run in bf16, int8 and as it is")
    parser.add_argument("quantized", nargs="*", help="checkpoints made of it")
    parser.add_argument("--tokens", type=int, default=160)
    arguments = parser.parse_args()
    forms: dict[str, tuple[str, str | None]] = {
        name: (arguments.model, quantization)
        for name, quantization in (("bf16", None), ("int8", "int8"), ("gguf", "gguf"))
    }
    forms |= {Path(path).name: (path, None) for path in arguments.quantized}
    engines = {
        name: LLM(path, dtype="bfloat16", quantization=quantization, max_num_seqs=4, num_kv_blocks=64)
        for name, (path, quantization) in forms.items()
    }
    parameters = SamplingParams(max_tokens=arguments.tokens, temperature=0.0, ignore_eos=True)
    found: dict[str, list[float]] = {name: [] for name in engines}
    for turn in range(ROUNDS + 1):
        for name, engine in engines.items():
            started = time.perf_counter()
            engine.generate([PROMPT], parameters, use_tqdm=False)
            if turn:  # the first one warms up
                found[name].append(arguments.tokens / (time.perf_counter() - started))
    medians = {name: statistics.median(values) for name, values in found.items()}
    for name, median in medians.items():
        row = {"form": name, "tokens_per_s": round(median, 1), "over_int8": round(median / medians["int8"], 2)}
        print(json.dumps(row))


if __name__ == "__main__":
    main()
