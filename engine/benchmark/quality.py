"""The quality loss of a quantization: perplexity of one text from the engine's own prompt log-probabilities.

`python -m engine.benchmark.quality < job.json > row.json` measures one quantization; `compare` runs one process each.
The text (`text_sample.txt`: English and Spanish prose, dialogue, Python, SQL, JSON) was written for this repository.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from engine.benchmark.child import BenchmarkError, Say, run_child
from engine.benchmark.machine import machine_header

BASELINE = "bf16"
QUANTIZATIONS = ("int8", "int4", "gguf")
SAMPLE = Path(__file__).with_name("text_sample.txt")
WINDOW_TOKENS = 512
WINDOWS_AT_ONCE = 4
BLOCK_TOKENS = 16


def compare(job: Mapping[str, Any], quantizations: Sequence[str], say: Say) -> dict[str, Any]:
    """bf16, then each of `quantizations`. `over_bf16` is the perplexity divided by that of bf16.

    Raises `BenchmarkError` for a quantization that does not exist or cannot be measured with this model.
    """
    unknown = [name for name in quantizations if name not in QUANTIZATIONS]
    if unknown:
        raise BenchmarkError(f"unknown quantization {', '.join(unknown)}; there are {', '.join(QUANTIZATIONS)}")
    rows: list[dict[str, Any]] = []
    for name in (BASELINE, *quantizations):
        say(f"{name}: reading the text")
        chosen = {**job, "quantization": None if name == BASELINE else name}
        row = run_child([sys.executable, "-m", "engine.benchmark.quality"], chosen, name=name, say=say)
        row["over_bf16"] = round(row["perplexity"] / (rows[0] if rows else row)["perplexity"], 5)
        say(f"{name}: perplexity {row['perplexity']}, {row['over_bf16']} of bf16")
        rows.append({"quantization": name, **row})
    return {"model": Path(job["model"]).name, "rows": rows, "machine": machine_header()}


def measure(job: Mapping[str, Any]) -> dict[str, Any]:
    """Perplexity of the job's `text` file (default: the sample) in windows that know nothing of each other."""
    from engine.config import EngineConfig
    from engine.execution.inspection import read_facts
    from engine.requests import GenerationRequest, SamplingParams
    from engine.serving.offline import LLMEngine

    # One token is generated behind each window.
    window = min(int(job.get("window_tokens", WINDOW_TOKENS)), read_facts(job["model"]).max_position_embeddings - 1)
    config = EngineConfig(
        model=job["model"],
        quantization=job.get("quantization"),
        dtype="bfloat16",
        device=job.get("device", "auto"),
        max_model_len=window + 1,
        max_num_seqs=WINDOWS_AT_ONCE,
        num_kv_blocks=WINDOWS_AT_ONCE * (window // BLOCK_TOKENS + 2),
        block_size=BLOCK_TOKENS,
        threads=job.get("threads"),
        enable_prefix_caching=False,
    )
    engine = LLMEngine(config)
    try:
        ids = engine.tokenizer.encode(Path(job.get("text") or SAMPLE).read_text(encoding="utf-8"))
        results = engine.generate(
            [
                GenerationRequest(str(number), part, SamplingParams(max_tokens=1, temperature=0.0, prompt_logprobs=0))
                for number, part in enumerate(windows(ids, window))
            ]
        )
    finally:
        engine.close()
    logprobs: list[float] = []
    for result in results:
        if result.error is not None or result.prompt_logprobs is None:
            raise BenchmarkError(f"a window was not scored: {result.error}")
        logprobs += [entry.logprob for entry in result.prompt_logprobs if entry is not None]
    return {"perplexity": round(perplexity(logprobs), 5), "scored_tokens": len(logprobs), "windows": len(results)}


def windows(token_ids: Sequence[int], size: int) -> list[tuple[int, ...]]:
    """Consecutive parts of `size` tokens; a last part of one token has nothing to be scored and is left out."""
    parts = [tuple(token_ids[first : first + size]) for first in range(0, len(token_ids), size)]
    return [part for part in parts if len(part) > 1]


def perplexity(logprobs: Sequence[float]) -> float:
    """exp of the mean negative log-probability (nats). Raises `ValueError` for none."""
    if not logprobs:
        raise ValueError("no token was scored")
    return math.exp(-math.fsum(logprobs) / len(logprobs))


if __name__ == "__main__":
    json.dump(measure(json.load(sys.stdin)), sys.stdout)
