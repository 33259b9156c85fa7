from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from engine import AsyncEngine, FinishReason, LoadedModel
from engine.execution.generation_defaults import sampling_defaults
from engine.scheduling.repetition import LEAST_RUN
from tests.fakes.byte_tokenizer import ByteTokenizer
from tests.fakes.engines import collect, config, loader_of, request, tokens_of
from tests.fakes.runner import FakeRunner


def write(folder: Path, text: str) -> Path:
    (folder / "generation_config.json").write_text(text, encoding="utf-8")
    return folder


def test_a_directorys_generation_config_is_read_as_vllm_reads_it(tmp_path: Path) -> None:
    values = {"temperature": 0.7, "top_p": 0.8, "top_k": 20, "repetition_penalty": 1.05, "min_p": 0.01}
    folder = write(tmp_path, json.dumps({**values, "do_sample": True, "eos_token_id": 2, "max_new_tokens": 2048}))
    assert sampling_defaults(folder, {}) == values


def test_a_ggufs_sampling_keys_are_read() -> None:
    metadata = {
        "general.architecture": "qwen2",
        "general.sampling.temp": 0.6,
        "general.sampling.top_k": 20,
        "general.sampling.top_p": 0.95,
        "general.sampling.min_p": 0.0,
        "general.sampling.penalty_repeat": 1.1,
    }
    expected = {"temperature": 0.6, "top_k": 20, "top_p": 0.95, "min_p": 0.0, "repetition_penalty": 1.1}
    assert sampling_defaults(Path("model.gguf"), metadata) == expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        '{"temperature": null}',
        '{"temperature": "hot", "top_p": 7, "top_k": 2.5, "min_p": true, "repetition_penalty": -1}',
        '{"temperature": NaN, "top_p": 0}',
        "[" * 100_000,
    ],
)
def test_what_makes_no_sense_is_left_out(tmp_path: Path, text: str) -> None:
    assert sampling_defaults(write(tmp_path, text), {}) == {}


async def test_the_flag_turns_the_recommendation_off() -> None:
    def load(*_: Any) -> LoadedModel:
        return LoadedModel(FakeRunner(), ByteTokenizer(), sampling_defaults={"temperature": 0.6})

    for flag, expected in (("auto", {"temperature": 0.6}), ("vllm", {})):
        engine = AsyncEngine(config(generation_config=flag), loader=load)
        await engine.start()
        assert engine.sampling_defaults == expected
        await engine.close()


# -- texts that repeat themselves --------------------------------------------------------------------------------------


def saying(tokens: list[int]) -> FakeRunner:
    """A runner whose model says `tokens` and then its last four for ever."""

    def next_token(_: Any, work: Any) -> int:
        made = len(work.sequence.token_ids) - work.sequence.num_prompt_tokens
        return tokens[made] if made < len(tokens) else tokens[-4 + (made - len(tokens)) % 4]

    return FakeRunner(num_blocks=512, max_model_len=2048, next_token=next_token)


async def ending(runner: FakeRunner, **fields: Any) -> tuple[int, FinishReason | None, Any]:
    engine = AsyncEngine(config(), loader=loader_of(runner))
    await engine.start()
    try:
        events = await collect(engine.generate(request("a", max_tokens=1000, **fields)))
    finally:
        await engine.close()
    return len(tokens_of(events)), events[-1].finish_reason, events[-1].stop_reason


async def test_an_answer_that_only_repeats_itself_ends_where_that_is_asked_for() -> None:
    start = [97 + number % 23 for number in range(60)]
    count, reason, cause = await ending(saying(start), stop_on_repetition=True)
    assert (reason, cause) == (FinishReason.LENGTH, "repetition")
    assert count == 60 + LEAST_RUN


@pytest.mark.parametrize("fields", [{}, {"stop_on_repetition": True, "ignore_eos": True}])
async def test_otherwise_it_runs_to_its_length(fields: dict[str, Any]) -> None:
    assert await ending(saying([1, 2, 3, 4]), **fields) == (1000, FinishReason.LENGTH, None)
