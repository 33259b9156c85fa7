"""Hugging Face `generate` under the workload: `python -m engine.benchmark.huggingface < job.json > row.json`.

One by one, or in static batches of 16, left-padded, each batch running to its longest output; only asked-for tokens
count. bf16 weights from a directory made once by `engine.benchmark.checkpoint`.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import torch

from engine.benchmark.measure import Row
from engine.benchmark.workload import BenchRequest, draw

SINGLE_OUTPUT_TOKENS = 64


def measure(job: dict[str, Any]) -> Row:
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(job.get("threads") or torch.get_num_threads())
    model = AutoModelForCausalLM.from_pretrained(job["hf_model"], dtype=torch.bfloat16)
    model.eval()
    workload = draw(job["requests"], job["min_len"], job["max_len"], job["seed"])
    static = job["system"] == "hf-static"
    size = 16 if static else 1
    generate(model, workload[:1], 8)
    # One by one is slow: a fixed part of the workload gives the same rate in a fraction of the time.
    measured = workload if static else workload[: job.get("sequential_requests", 8)]
    begun = time.monotonic()
    tokens = 0
    for first in range(0, len(measured), size):
        batch = measured[first : first + size]
        generate(model, batch, max(request.output_tokens for request in batch))
        tokens += sum(request.output_tokens for request in batch)
    seconds = time.monotonic() - begun
    begun = time.monotonic()
    generate(model, workload[:1], SINGLE_OUTPUT_TOKENS)
    single = SINGLE_OUTPUT_TOKENS / (time.monotonic() - begun)
    return Row(
        system=job["system"],
        output_tokens=tokens,
        seconds=round(seconds, 3),
        output_tokens_per_s=round(tokens / seconds, 1),
        single_stream_tokens_per_s=round(single, 1),
        peak_rss_bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        note=f"bf16, {len(measured)} of {len(workload)} requests",
    )


@torch.inference_mode()
def generate(model: Any, batch: Sequence[BenchRequest], new_tokens: int) -> None:
    longest = max(len(request.prompt_token_ids) for request in batch)
    ids = torch.zeros(len(batch), longest, dtype=torch.long)
    mask = torch.zeros_like(ids)
    for row, request in enumerate(batch):
        ids[row, longest - len(request.prompt_token_ids) :] = torch.tensor(request.prompt_token_ids)
        mask[row, longest - len(request.prompt_token_ids) :] = 1
    model.generate(
        ids, attention_mask=mask, do_sample=False, min_new_tokens=new_tokens, max_new_tokens=new_tokens, pad_token_id=0
    )


if __name__ == "__main__":
    json.dump(asdict(measure(json.load(sys.stdin))), sys.stdout)
