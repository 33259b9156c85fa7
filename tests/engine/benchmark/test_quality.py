"""Quality beside bf16: perplexity is what it says, windows cover the text, and int8 stays within one per cent."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from engine.benchmark.child import BenchmarkError
from engine.benchmark.quality import SAMPLE, compare, perplexity, windows
from tests.fakes.demo_models import SMALL, demo_model
from tests.fakes.tiny_model import write_tiny_model


def test_perplexity_of_a_fair_choice_among_eight_is_eight() -> None:
    assert perplexity([math.log(1 / 8)] * 5) == pytest.approx(8.0)


def test_there_is_no_perplexity_of_nothing() -> None:
    with pytest.raises(ValueError, match="no token"):
        perplexity([])


def test_windows_cover_the_text_and_leave_a_lone_last_token_out() -> None:
    assert windows([1, 2, 3, 4, 5, 6, 7], 3) == [(1, 2, 3), (4, 5, 6)]
    assert windows([1, 2, 3, 4, 5], 3) == [(1, 2, 3), (4, 5)]


def test_the_sample_holds_both_languages_and_code() -> None:
    text = SAMPLE.read_text(encoding="utf-8")
    for part in ("The keeper of the third lock", "La esclusa del molino", "class Lock:", "GROUP BY"):
        assert part in text


def test_an_unknown_quantization_is_refused_with_the_known_ones() -> None:
    with pytest.raises(BenchmarkError, match="int8, int4, gguf"):
        compare({"model": "x"}, ("int3",), lambda _: None)


def test_each_quantization_is_compared_with_bf16_on_the_same_tokens(tmp_path: Path) -> None:
    write_tiny_model(tmp_path / "model")
    text = tmp_path / "text.txt"
    text.write_text("Abre la compuerta. Open the gate.\n" * 12, encoding="utf-8")
    job = {"model": str(tmp_path / "model"), "text": str(text), "window_tokens": 64}
    base, quantized = compare(job, ("int8",), lambda _: None)["rows"]
    assert (base["quantization"], base["over_bf16"]) == ("bf16", 1.0)
    assert quantized["scored_tokens"] == base["scored_tokens"] > 300
    assert quantized["over_bf16"] == pytest.approx(quantized["perplexity"] / base["perplexity"], abs=1e-4)


@pytest.mark.models
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_int8_keeps_perplexity_within_one_per_cent_of_bf16() -> None:
    base, quantized = compare({"model": str(demo_model(SMALL))}, ("int8",), lambda _: None)["rows"]
    assert base["scored_tokens"] > 3000
    assert 0.99 <= quantized["perplexity"] / base["perplexity"] <= 1.01
