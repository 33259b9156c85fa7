"""The offline engine as vLLM's users know it: texts, conversations, vectors, any number of them, errors one by one."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from engine import LLM, DuplicateRequest, EngineConfig, GenerationRequest, InvalidInput, LLMEngine, SamplingParams
from tests.fakes.byte_tokenizer import ByteTokenizer
from tests.fakes.engines import config, loader_of, request
from tests.fakes.runner import FakeRunner
from tests.fakes.tiny_model import write_tiny_model

ROOT = Path(__file__).parents[3]
GREEDY = SamplingParams(temperature=0.0, max_tokens=5)


class Texts(ByteTokenizer):
    def encode(self, text: str, add_special_tokens: bool = False) -> list[int]:
        return list(text.encode())

    def apply_chat_template(self, messages: Any, add_generation_prompt: bool = True) -> list[int]:
        if not messages:
            raise InvalidInput("messages", 0, "must hold at least one")
        return [token for message in messages for token in message["content"].encode()]


@pytest.fixture
def llm() -> Iterator[LLM]:
    runner = FakeRunner(num_blocks=256)
    with LLM("fake", loader=loader_of(runner, Texts()), block_size=4, max_num_seqs=4, max_waiting=8) as made:
        yield made
    assert runner.closed


def held(llm: LLM) -> int:
    stats = llm.llm_engine.stats()
    return stats.running + stats.waiting + (stats.kv.num_blocks - stats.kv.free_blocks)


def test_one_text_gives_one_output_with_its_tokens(llm: LLM) -> None:
    (output,) = llm.generate("hola", GREEDY, use_tqdm=False)
    (choice,) = output.outputs
    assert (output.prompt, output.prompt_token_ids) == ("hola", tuple(b"hola"))
    assert len(choice.token_ids) == 5
    assert choice.text == bytes(choice.token_ids).decode("utf-8", "replace")
    assert (choice.finish_reason, choice.logprobs, output.error) == ("length", None, None)


def test_texts_tokens_and_vllms_dictionaries_mean_the_same(llm: LLM) -> None:
    ids = list(b"hola")
    forms: list[Any] = ["hola", {"prompt": "hola"}, {"prompt_token_ids": ids}, ids]
    alone = [llm.generate(form, GREEDY, use_tqdm=False)[0].outputs[0].token_ids for form in forms]
    together = [output.outputs[0].token_ids for output in llm.generate(forms, GREEDY, use_tqdm=False)]
    assert alone == together
    assert len(set(alone)) == 1


def test_parameters_may_differ_by_prompt_and_outputs_keep_the_order(llm: LLM) -> None:
    params = [SamplingParams(temperature=0.0, max_tokens=count, n=2 if count == 3 else 1) for count in (9, 1, 3)]
    outputs = llm.generate(["a", "b", "c"], params, use_tqdm=False)
    assert [[len(choice.token_ids) for choice in output.outputs] for output in outputs] == [[9], [1], [3, 3]]
    assert [output.prompt for output in outputs] == ["a", "b", "c"]
    with pytest.raises(InvalidInput):
        llm.generate(["a", "b"], [GREEDY], use_tqdm=False)


def test_log_probabilities_come_by_token_id_as_in_vllm(llm: LLM) -> None:
    sampling = SamplingParams(temperature=0.0, max_tokens=2, logprobs=2)
    (output,) = llm.generate("hola", sampling, use_tqdm=False)
    choice = output.outputs[0]
    assert choice.logprobs is not None
    assert [entry[token].logprob for entry, token in zip(choice.logprobs, choice.token_ids, strict=True)] == [-0.5] * 2
    assert choice.cumulative_logprob == pytest.approx(-1.0)


def test_a_request_that_cannot_run_has_its_own_error_and_the_others_run(llm: LLM) -> None:
    outputs = llm.generate(["a", "x" * 1000, "", "b"], GREEDY, use_tqdm=False)
    assert [output.error.code if output.error else None for output in outputs] == [
        None,
        "context_length_exceeded",
        "invalid_value",
        None,
    ]
    assert [len(output.outputs) for output in outputs] == [1, 0, 0, 1]


def test_thousands_of_prompts_run_through_a_short_queue(llm: LLM, capsys: pytest.CaptureFixture[str]) -> None:
    outputs = llm.generate([f"{number}" for number in range(2000)], SamplingParams(temperature=0.0, max_tokens=2))
    assert [output.prompt for output in outputs] == [str(number) for number in range(2000)]
    assert all(len(output.outputs[0].token_ids) == 2 for output in outputs)
    assert held(llm) == 0
    assert "2000" in capsys.readouterr().err


def test_one_conversation_or_many(llm: LLM) -> None:
    first, second = [{"role": "user", "content": "hola"}], [{"role": "user", "content": "adios"}]
    (alone,) = llm.chat(first, GREEDY, use_tqdm=False)
    outputs = llm.chat([first, second, []], GREEDY, use_tqdm=False)
    assert outputs[0].outputs[0].token_ids == alone.outputs[0].token_ids
    assert outputs[1].prompt_token_ids == tuple(b"adios")
    assert outputs[2].error is not None


def test_vectors_and_similarities_keep_the_order(llm: LLM) -> None:
    vectors = llm.embed(["ab", "x" * 1000, "c"], use_tqdm=False)
    assert [v.outputs.embedding if v.outputs else None for v in vectors] == [(195.0, 2.0), None, (99.0, 1.0)]
    assert vectors[1].error is not None
    one_to_many = llm.score("a", ["b", "c"], use_tqdm=False)
    assert [s.outputs.score if s.outputs else None for s in one_to_many] == [97.0 * 98 + 1, 97.0 * 99 + 1]
    with pytest.raises(InvalidInput):
        llm.score(["a", "b"], ["c"], use_tqdm=False)


def test_it_works_inside_a_running_event_loop_as_in_a_notebook(llm: LLM) -> None:
    async def cell() -> int:
        return len(llm.generate(["a", "b"], GREEDY, use_tqdm=False))

    assert asyncio.run(cell()) == 2


def test_the_same_script_gives_the_same_answers() -> None:
    def answers(seed: int) -> list[tuple[int, ...]]:
        with LLM("fake", loader=loader_of(FakeRunner(), Texts()), block_size=4, seed=seed) as llm:
            return [output.outputs[0].token_ids for output in llm.generate(["a", "a"], SamplingParams(max_tokens=8))]

    assert answers(1) == answers(1)
    assert answers(1) != answers(2)


def test_an_unknown_flag_is_named_with_the_nearest_one() -> None:
    with pytest.raises(InvalidInput) as caught:
        LLM("fake", max_num_seq=3)
    assert "max_num_seqs" in (caught.value.hint or "")


# -- the engine below ------------------------------------------------------------------------------------------------


def test_a_configuration_as_it_comes_works_offline() -> None:
    runner = FakeRunner(block_size=16)
    engine = LLMEngine(EngineConfig("fake"), loader=loader_of(runner))
    assert engine.generate([request("a", max_tokens=3)])[0].error is None


def test_more_requests_than_may_wait_all_run_and_leave_room_for_the_next_call() -> None:
    engine = LLMEngine(config(max_waiting=5), loader=loader_of(FakeRunner()))
    for turn in range(2):
        results = engine.generate([request(f"{turn}-{i}", f"p{i}", max_tokens=2, n=3) for i in range(40)])
        assert all(result.error is None for result in results)


class Stop(Exception):
    pass


@pytest.mark.parametrize("error", [Stop, KeyboardInterrupt])
def test_whatever_is_raised_nothing_of_the_call_stays_behind(error: type[BaseException]) -> None:
    engine = LLMEngine(config(), loader=loader_of(FakeRunner()))
    requests = [request(str(i), f"p{i}", max_tokens=20) for i in range(20)]

    def interrupt(_: Any) -> None:
        raise error

    with pytest.raises(error):
        engine.generate(requests, done=interrupt)
    stats = engine.stats()
    assert (stats.running, stats.waiting, stats.kv.free_blocks) == (0, 0, stats.kv.num_blocks)
    assert all(result.error is None for result in engine.generate(requests))


def test_the_same_id_twice_is_refused_before_anything_runs() -> None:
    engine = LLMEngine(config(), loader=loader_of(FakeRunner()))
    with pytest.raises(DuplicateRequest):
        engine.generate([request("a", max_tokens=2), request("a", max_tokens=2)])
    assert engine.stats().steps == 0


def test_the_example_of_the_guide_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_tiny_model(tmp_path / "model")
    guide = (ROOT / "docs/guides/offline.md").read_text(encoding="utf-8")
    example = re.search(r"```python\n(.*?)```", guide, re.DOTALL)
    assert example is not None
    code = example[1].replace('"models/qwen2.5-0.5b-instruct"', repr(str(tmp_path / "model")))
    assert str(tmp_path) in code
    names: dict[str, Any] = {}
    monkeypatch.chdir(tmp_path)
    exec(code, names)
    assert len(names["outputs"]) == 3
    assert isinstance(names["outputs"][0].outputs[0].text, str)


def test_the_same_prompt_as_a_plain_request_gives_the_same_tokens(llm: LLM) -> None:
    plain = llm.llm_engine.generate([GenerationRequest("x", tuple(b"hola"), GREEDY)])[0].choices[0].token_ids
    assert list(llm.generate("hola", GREEDY, use_tqdm=False)[0].outputs[0].token_ids) == plain
