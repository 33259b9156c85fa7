"""Prints for `esclusa models verify`: a table of conventions, one of matrices, and the findings."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from engine import VerifyReport


def run_verification(path: str, backend: str, as_json: bool) -> None:
    """Exit 1 with what was found."""
    from engine import EngineError, verify_model

    try:
        report = verify_model(path, _progress, backend)
    except ModuleNotFoundError as error:
        _fail("engine_missing", f"{error.name} is not installed", "pip install 'esclusa[engine]'")
    except EngineError as error:
        _fail(error.code, error.message, error.hint)
    if as_json:
        print(json.dumps(document(report), indent=2))
    else:
        print("\n".join(lines(report)))
    for finding in report.findings:
        print(f"error ({finding.code}): {finding.message}\nhint: {finding.hint}", file=sys.stderr)
    if not report.good:
        raise typer.Exit(1)


def document(report: VerifyReport) -> dict[str, Any]:
    """As JSON has it: a loss that is no number is null."""
    conventions = [
        asdict(convention) | {"loss": convention.loss if math.isfinite(convention.loss) else None}
        for convention in report.conventions
    ]
    matrices = [
        asdict(matrix) | {"error": matrix.error if math.isfinite(matrix.error) else None, "good": matrix.good}
        for matrix in report.matrices
    ]
    return asdict(report) | {"good": report.good, "conventions": conventions, "matrices": matrices}


def lines(report: VerifyReport) -> Iterator[str]:
    yield f"{report.format}: declared {report.declared}, stored as {report.real or 'unknown'} (by {report.decided_by})"
    yield ""
    yield f"{'read as':56}{'perplexity':>12}{'bias, steps':>13}"
    for convention in report.conventions:
        bias = "" if convention.bias is None else f"{convention.bias:.2f}"
        mark = " *" if convention.name == report.real else ""
        yield f"{convention.name:56}{_perplexity(convention.loss):>12}{bias:>13}{mark}"
    yield ""
    yield f"{'matrix':44}{'stored':>22}{'bytes':>12}{'packed again':>14}{'product error':>15}"
    for matrix in report.matrices:
        again = "differs" if matrix.changed else "the same"
        row = f"{matrix.module:44}{matrix.kind:>22}{matrix.nbytes:>12}{again:>14}{matrix.error:>15.2e}"
        yield row if matrix.good else f"{row}  !"
    yield ""
    yield f"{len(report.matrices)} matrices on {report.backend}, weights {report.weights_sha256}"


def _perplexity(loss: float) -> str:
    value = math.exp(min(loss, 700.0))
    return f"{value:.2f}" if value < 1e6 else f"{value:.1e}" if math.isfinite(loss) else "no number"


def _progress(what: str, done: int, total: int) -> None:
    if sys.stderr.isatty():
        print(f"\r\x1b[2K{done} of {total}  {what}", end="\n" if done == total else "", file=sys.stderr)
    elif done < total:
        print(f"{done} of {total}: {what}", file=sys.stderr)


def _fail(code: str, message: str, hint: str | None) -> None:
    print(f"error ({code}): {message}", file=sys.stderr)
    if hint:
        print(f"hint: {hint}", file=sys.stderr)
    raise typer.Exit(1)
