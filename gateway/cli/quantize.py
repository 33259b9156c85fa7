"""`esclusa quantize`: a smaller checkpoint of a model, with its perplexity before and after."""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import typer


def quantize(
    model: Path = typer.Argument(help="Model directory (safetensors) or .gguf file."),
    to: str = typer.Option(..., help="awq, gptq, fp8 or int8."),
    out: Path = typer.Option(..., help="Folder of the new checkpoint; it must not exist, or be empty."),
    bits: int = typer.Option(4, help="Of gptq: 2, 3, 4 or 8."),
    group_size: int = typer.Option(128, help="Inputs per scale of awq and gptq, at most."),
    asymmetric: bool = typer.Option(False, help="gptq with zero points; awq always has them."),
    act_order: bool = typer.Option(False, help="gptq: columns with the largest inputs first."),
    calibration: Path | None = typer.Option(None, help="A text for awq and gptq, like what the model will read."),
    windows: int = typer.Option(32, help="Parts of the text that are used."),
    window_tokens: int = typer.Option(256, help="Tokens of a part."),
    perplexity: bool = typer.Option(True, help="Measure it before and after, on a text that was not calibrated on."),
    as_json: bool = typer.Option(False, "--json", help="JSON on stdout."),
) -> None:
    """Quantize a model: AWQ and GPTQ by what its layers are given by a text, FP8 and int8 without one.

    The result is served like any other model directory, here and by other engines. The model is held in float32 while
    it is worked on: four bytes of memory a weight.

    Example: esclusa quantize ./llama --to awq --out ./llama-awq
    """
    from engine import EngineError, QuantizeRequest, quantize_model
    from engine.benchmark.child import BenchmarkError

    started = time.monotonic()
    try:
        text = "" if calibration is None else calibration.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        _fail(f"the calibration text cannot be read: {error}", "give a text file in UTF-8")
    os.environ.setdefault("OMP_NUM_THREADS", str(os.cpu_count() or 1))
    request = QuantizeRequest(
        str(model), to, out, bits, group_size, not asymmetric, act_order, text, windows, window_tokens
    )
    try:
        written = quantize_model(request, _Progress())
    except EngineError as error:
        _fail(error.message, error.hint)
    result: dict[str, Any] = {"out": str(out), **asdict(written), "seconds": round(time.monotonic() - started, 1)}
    if perplexity:
        try:
            result["perplexity"] = _perplexities(model, out)
        except BenchmarkError as error:
            _fail(
                f"the checkpoint is written to {out}, but its perplexity was not measured: {error}", "--no-perplexity"
            )
    if as_json:
        print(json.dumps(result, indent=2))
        return
    print(f"{out}: {written.bytes_after >> 20} MiB, {written.bytes_before >> 20} MiB before, {result['seconds']} s")
    if perplexity:
        before, after = result["perplexity"]["before"], result["perplexity"]["after"]
        print(f"perplexity {before:.3f} before, {after:.3f} after ({after / before:.3f})")


def _perplexities(model: Path, out: Path) -> dict[str, float]:
    """Of the text that comes with the benchmarks, each in a process of its own."""
    from engine.benchmark.child import run_child

    found = {}
    for name, path in (("before", model), ("after", out)):
        print(f"perplexity {name}", file=sys.stderr)
        command = [sys.executable, "-m", "engine.benchmark.quality"]
        row = run_child(command, {"model": str(path)}, name=name, say=_say)
        found[name] = float(row["perplexity"])
    return found


def _say(line: str) -> None:
    print(line, file=sys.stderr)


class _Progress:
    """A line on stderr that is updated on a terminal, and a line every five seconds elsewhere."""

    def __init__(self) -> None:
        self._last = 0.0

    def __call__(self, stage: str, done: int, total: int) -> None:
        now, terminal = time.monotonic(), sys.stderr.isatty()
        if done < total and now - self._last < (0.1 if terminal else 5.0):
            return
        self._last = now
        line = f"{stage}: {done} of {total}"
        print(
            f"\r\x1b[2K{line}" if terminal else line, end="\n" if done == total or not terminal else "", file=sys.stderr
        )


def _fail(message: str, hint: str | None) -> None:
    print(f"error: {message}", file=sys.stderr)
    if hint:
        print(f"hint: {hint}", file=sys.stderr)
    raise typer.Exit(1)
