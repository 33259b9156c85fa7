"""How well the shipped router ranks prompts by what the large model gains, beside length, task means and the oracle.

    python -m benchmarks.routing PATH [--json]

PATH is a folder of `*.dev.jsonl.gz` files with recorded outcomes of a small and a large model per prompt: columns
`prompt`, `task`, `group`, and `small_correct`/`large_correct`, `small_score`/`large_score` or `scores`. Runs no model.

APGR is the area under "performance gap recovered" over the share of calls sent to the large model: 0.5 is random,
the oracle is the best order there is. CPT(x) is the smallest share of large calls that recovers x of the gap.
"""

from __future__ import annotations

import argparse
import gzip
import json
import platform
import sys
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gateway.flow.values import ChatRequest, Message
from gateway.routing.features import features_of
from gateway.routing.router import ROUTER_VERSION, difficulty
from gateway.settings import RoutingSettings

Array = npt.NDArray[np.float64]
NINE_PAIRS = (
    ("mistral-7b-instruct-v0.3", "llama-3.1-nemotron-51b-instruct"),
    ("llama-3.1-8b-instruct", "llama-3.1-nemotron-51b-instruct"),
)
DRAWS = 200


def recovered(score: Array, gain: Array) -> Array:
    """PGR after 0..n large calls in the order of `score`, averaged inside ties. Shape `(n + 1,)`."""
    order = np.argsort(-score, kind="stable")
    _, block = np.unique(-score[order], return_inverse=True)
    mean = np.bincount(block, gain[order]) / np.bincount(block)
    curve: Array = np.concatenate([[0.0], np.cumsum(mean[block])]) / gain.sum()
    return curve


def apgr(score: Array, gain: Array) -> float:
    return float(np.trapezoid(recovered(score, gain), dx=1 / len(gain)))


def cpt(score: Array, gain: Array, share: float) -> float:
    """The first crossing of `share`, interpolated; 1 when it is never reached."""
    curve = recovered(score, gain)
    reached = np.flatnonzero(curve >= share)
    if not len(reached) or reached[0] == 0:
        return float(not len(reached))
    k = int(reached[0])
    return float((k - 1 + (share - curve[k - 1]) / (curve[k] - curve[k - 1])) / len(gain))


def interval(score: Array, gain: Array, groups: Sequence[str]) -> tuple[float, float]:
    """95 % bootstrap interval of APGR, drawn by group so that the same question never counts twice."""
    members: dict[str, list[int]] = defaultdict(list)
    for index, group in enumerate(groups):
        members[group].append(index)
    blocks, chance = [np.array(rows) for rows in members.values()], np.random.default_rng(7)
    draws = []
    for _ in range(DRAWS):
        rows = np.concatenate([blocks[pick] for pick in chance.integers(len(blocks), size=len(blocks))])
        draws.append(apgr(score[rows], gain[rows]))
    low, high = np.quantile(draws, [0.025, 0.975])
    return float(low), float(high)


def measure(name: str, rows: Sequence[Mapping[str, Any]], small: Array, large: Array) -> dict[str, object]:
    gain = large - small
    started = time.perf_counter()
    router = np.array([_score(row["prompt"]) for row in rows])
    micros = (time.perf_counter() - started) / len(rows) * 1e6
    tasks: dict[str, list[float]] = defaultdict(list)
    for row, value in zip(rows, gain, strict=True):
        tasks[row["task"]].append(float(value))
    prior = np.array([np.mean(tasks[row["task"]]) for row in rows])
    length = np.array([float(len(row["prompt"])) for row in rows])
    low, high = interval(router, gain, [row["group"] for row in rows])
    return {
        "set": name,
        "prompts": len(rows),
        "small": round(float(small.mean()), 4),
        "large": round(float(large.mean()), 4),
        "apgr_router": round(apgr(router, gain), 3),
        "apgr_router_95": [round(low, 3), round(high, 3)],
        "apgr_random": 0.5,
        "apgr_length": round(apgr(length, gain), 3),
        "apgr_task_mean": round(apgr(prior, gain), 3),
        "apgr_oracle": round(apgr(gain, gain), 3),
        "cpt50": round(cpt(router, gain, 0.5), 3),
        "cpt80": round(cpt(router, gain, 0.8), 3),
        "share_large_at_threshold": round(float((router >= RoutingSettings().threshold).mean()), 3),
        "us_per_prompt": round(micros, 1),
    }


def languages(rows: Sequence[Mapping[str, Any]]) -> dict[str, object]:
    """Do the same questions in Spanish and English go to the same model?"""
    at = RoutingSettings().threshold
    english, spanish = (np.array([_score(row[name]) >= at for row in rows]) for name in ("en", "es"))
    return {
        "questions": len(rows),
        "agreement": round(float((english == spanish).mean()), 3),
        "share_large_en": round(float(english.mean()), 3),
        "share_large_es": round(float(spanish.mean()), 3),
    }


def report(folder: Path) -> dict[str, object]:
    """Raises `FileNotFoundError` when a file is missing."""
    found = []
    for name in ("mmlu", "gsm8k"):
        rows = _load(folder / f"routellm_{name}.dev.jsonl.gz")
        found.append(measure(name, rows, _column(rows, "small_correct"), _column(rows, "large_correct")))
    rows = _load(folder / "routellm_mtbench.dev.jsonl.gz")
    found.append(measure("mtbench", rows, _column(rows, "small_score"), _column(rows, "large_score")))
    nine = _load(folder / "llmrouter9.dev.jsonl.gz")
    for small, large in NINE_PAIRS:
        rows = [row for row in nine if small in row["scores"] and large in row["scores"]]
        low, high = (np.array([float(row["scores"][model]) for row in rows]) for model in (small, large))
        found.append(measure(f"{small} -> {large}", rows, low, high))
    return {
        "router": ROUTER_VERSION,
        "machine": f"{platform.machine()} {platform.system()} Python {platform.python_version()}",
        "rows": found,
        "languages": languages(_load(folder / "mgsm_parallel.dev.jsonl.gz")),
    }


def _score(prompt: str) -> float:
    return difficulty(features_of(ChatRequest("auto", (Message.of_text("user", prompt),))))


def _column(rows: Sequence[Mapping[str, Any]], name: str) -> Array:
    return np.array([float(np.mean(row[name])) for row in rows])


def _load(path: Path) -> list[dict[str, Any]]:
    with gzip.open(path, "rt", encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--json", action="store_true")
    chosen = parser.parse_args()
    result = report(chosen.folder)
    if chosen.json:
        json.dump(result, sys.stdout, indent=1)
        print()
        return
    print(f"{result['router']} on {result['machine']}")
    columns = ("apgr_router", "apgr_router_95", "apgr_length", "apgr_task_mean", "apgr_oracle", "cpt50", "cpt80")
    for row in result["rows"]:  # type: ignore[attr-defined]
        print(f"\n{row['set']}  ({row['prompts']} prompts, {row['small']} -> {row['large']})")
        print("  " + "  ".join(f"{name} {row[name]}" for name in columns))
        print(f"  large at the default threshold {row['share_large_at_threshold']}, {row['us_per_prompt']} us a prompt")
    print(f"\nSpanish and English: {result['languages']}")


if __name__ == "__main__":
    main()
