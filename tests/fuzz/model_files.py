"""Loads damaged copies of a tiny model in a process whose memory is limited, and prints what happened.

    python -m tests.fuzz.model_files KIND FOLDER FIRST_SEED COUNT SECONDS

Prints one JSON object: how many loaded, how many were refused by which typed error, and every other exception. A copy
that takes more than `CPU_S` of processor time ends the process, as one does that the operating system kills.
"""

from __future__ import annotations

import json
import resource
import shutil
import signal
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import torch

from engine.config import EngineConfig
from engine.errors import EngineError
from engine.execution.runner import load_model
from tests.fakes.mutations import mutate

CPU_S = 20.0
MEMORY_BYTES = 6 << 30
HEADER_BYTES = 12_000
DOCUMENTS = ("config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json")


def damaged(kind: str, source: Path, scratch: Path, seed: int) -> Path:
    """A copy of the model with one file damaged."""
    if kind == "gguf":
        target = scratch / "model.gguf"
        target.write_bytes(mutate(source.read_bytes(), seed, within=HEADER_BYTES if seed % 4 else None))
        return target
    shutil.rmtree(scratch / "model", ignore_errors=True)
    shutil.copytree(source, scratch / "model")
    names = sorted(path.name for path in source.iterdir())
    chosen = names[seed % len(names)]
    path = scratch / "model" / chosen
    path.write_bytes(mutate(path.read_bytes(), seed, within=4096 if seed % 3 else None))
    return scratch / "model"


def main(kind: str, folder: Path, first: int, count: int, seconds: float) -> dict[str, Any]:
    torch.set_num_threads(1)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    source = folder / ("model.gguf" if kind == "gguf" else "model")
    scratch = folder / "scratch"
    scratch.mkdir(exist_ok=True)
    outcomes: Counter[str] = Counter()
    uncaught: list[str] = []
    started, seed = time.monotonic(), first
    while seed < first + count and time.monotonic() - started < seconds:
        signal.setitimer(signal.ITIMER_PROF, CPU_S)
        path = damaged(kind, source, scratch, seed)
        try:
            load_model(EngineConfig(str(path), device="cpu", num_kv_blocks=8), lambda stage, percent: None)
            outcomes["loaded"] += 1
        except EngineError as error:
            outcomes[type(error).__name__] += 1
        except BaseException as error:  # noqa: BLE001 - what the test is about
            uncaught.append(f"seed {seed}: {type(error).__name__}: {str(error)[:200]}")
        seed += 1
    signal.setitimer(signal.ITIMER_PROF, 0.0)
    return {"files": seed - first, "outcomes": dict(outcomes), "uncaught": uncaught}


if __name__ == "__main__":
    arguments = sys.argv[1:]
    report = main(arguments[0], Path(arguments[1]), int(arguments[2]), int(arguments[3]), float(arguments[4]))
    sys.stdout.write(json.dumps(report) + "\n")
