"""What `esclusa models verify` prints."""

from __future__ import annotations

import json
import math

import pytest
import typer

import engine
from engine import InvalidInput, VerifyReport
from engine.verification.report import ConventionReport, Finding, MatrixReport
from gateway.cli.verify import document, lines, run_verification

GOOD = MatrixReport("model.layers.0.mlp.up_proj", "int4 g128", (512, 256), 70000, (), 0.004, 0.02)
WRONG = MatrixReport("model.layers.0.mlp.down_proj", "int4 g128", (256, 512), 70000, ("qweight",), math.inf, 0.02)


def report(*findings: Finding) -> VerifyReport:
    ways = (ConventionReport("gptq v1", math.inf, 0.99), ConventionReport("gptq v2", 3.0, -0.01))
    return VerifyReport("gptq", "gptq v1", "gptq v2", "text", "cpu", "a1b2", ways, (GOOD, WRONG), findings)


def test_the_table_marks_the_real_convention_and_wrong_matrices() -> None:
    rows = list(lines(report()))
    assert rows[0] == "gptq: declared gptq v1, stored as gptq v2 (by text)"
    assert [row.split() for row in rows if row.startswith("gptq v")] == [
        ["gptq", "v1", "no", "number", "0.99"],
        ["gptq", "v2", "20.09", "-0.01", "*"],
    ]
    assert [row.endswith("!") for row in rows if row.startswith("model.")] == [False, True]


def test_json_has_null_for_what_is_no_number() -> None:
    written = json.loads(json.dumps(document(report()), allow_nan=False))
    assert [row["loss"] for row in written["conventions"]] == [None, 3.0]
    assert [(row["error"], row["good"]) for row in written["matrices"]] == [(0.004, True), (None, False)]
    assert written["good"] is True


def test_findings_end_with_exit_code_1(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    finding = Finding("convention_mismatch", "declared: gptq v1; the weights are stored as: gptq v2", "correct it")
    monkeypatch.setattr(engine, "verify_model", lambda *_: report(finding))
    with pytest.raises(typer.Exit) as ended:
        run_verification("model", "cpu", True)
    printed = capsys.readouterr()
    assert ended.value.exit_code == 1
    assert json.loads(printed.out)["findings"][0]["code"] == "convention_mismatch"
    assert printed.err.splitlines() == [f"error (convention_mismatch): {finding.message}", "hint: correct it"]


def test_errors_of_the_engine_are_told_with_code_and_hint(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(*_: object) -> VerifyReport:
        raise InvalidInput("path", "m", "the model is not stored quantized", hint="take another")

    monkeypatch.setattr(engine, "verify_model", refuse)
    with pytest.raises(typer.Exit):
        run_verification("m", "cpu", False)
    assert capsys.readouterr().err == (
        "error (invalid_value): `path` is 'm'; the model is not stored quantized\nhint: take another\n"
    )
