"""Findings name what was declared, what is real and what to change."""

from __future__ import annotations

from math import inf

import pytest

from engine.verification.decision import ASYMMETRIC, V1, V2, VARIED, decide
from engine.verification.findings import findings
from engine.verification.report import ConventionReport, MatrixReport

GOOD = MatrixReport("m", "int4 g128", (8, 8), 32, (), 0.01, 0.02)


@pytest.mark.parametrize(
    ("real", "decided_by", "hint"),
    [
        (V2, "text", "correct `quantization_config`"),
        (V2, "words", "correct `checkpoint_format`"),
        (ASYMMETRIC + V2, "words", "set `sym` to false"),
    ],
)
def test_a_mismatch_names_both_and_what_to_correct(real: str, decided_by: str, hint: str) -> None:
    (found,) = findings(V1, real, decided_by, [GOOD])
    assert found.code == "convention_mismatch"
    assert V1 in found.message
    assert real in found.message
    assert hint in found.hint


def test_a_right_file_has_none_and_a_file_without_codes_has_one() -> None:
    assert list(findings(V1, V1, "text", [GOOD])) == []
    assert [found.code for found in findings(V1, V1, "text", [])] == ["no_quantized_matrix"]


def way(name: str, loss: float, bias: float | None = None) -> ConventionReport:
    return ConventionReport(name, loss, bias)


@pytest.mark.parametrize(
    ("ways", "words", "real"),
    [
        ([way(V1, 3.0, 0.0), way(V2, 20.0, 1.0)], (), (V1, "text")),
        ([way(V1, inf, 1.0), way(V2, 3.0, 0.0)], (), (V2, "text")),
        ([way(V1, 3.0, 0.8), way(V2, 3.01, -0.2)], (), (V2, "weights")),
        ([way(V1, 3.0, 0.4), way(V2, 2.9, -0.2)], (), (V1, "text")),
        ([way(V1, 9.0, 0.0), way(V2, 9.0, 1.0)], (), (None, "nothing")),
        ([way(V1, 3.0, 0.0)], (V2,), (V2, "words")),
        ([way(V1, 3.0, 0.0)], (V1,), (V1, "text")),
        ([way(V1, 3.0, 0.0), way("other", 1.0)], (V2,), ("other", "text")),
        ([way(V1, 3.0, 0.0), way(ASYMMETRIC + V1, 3.1, 0.1), way(ASYMMETRIC + V2, 5.0, 1.1)], (VARIED,),
         (ASYMMETRIC + V1, "words")),
    ],
)  # fmt: skip
def test_the_real_convention_is_decided_by_text_then_weights_then_words(
    ways: list[ConventionReport], words: tuple[str, ...], real: tuple[str | None, str]
) -> None:
    assert decide(ways, 1000, words) == real
