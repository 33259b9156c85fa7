"""The runner on a tiny model: what a step gives, and that company, chunks, blocks and slots change nothing."""

from __future__ import annotations

import subprocess
import sys
from collections import abc
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.config import EngineConfig
from engine.errors import EngineFault, EngineUnavailable, InvalidInput, UnsupportedModel
from engine.execution.runner import ModelRunner
from engine.requests import SamplingParams
from engine.step import Step, Work
from tests.fakes.hand_steps import GREEDY, HandDriver, HandSequence
from tests.fakes.tiny_model import write_tiny_model

PROMPT = [40, 50, 60, 70, 80, 90, 100, 110, 120, 130, 140, 33, 44]
SAMPLED = SamplingParams(temperature=1.0, top_p=0.9)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    directory = tmp_path_factory.mktemp("tiny")
    return directory, write_tiny_model(directory)


def make_runner(directory: Path, **changes: Any) -> ModelRunner:
    defaults: dict[str, Any] = {
        "dtype": "float32",
        "device": "cpu",
        "block_size": 4,
        "num_kv_blocks": 256,
        "max_num_seqs": 16,
    }
    return ModelRunner(EngineConfig(str(directory), **(defaults | changes)))


@pytest.fixture(scope="module")
def runner(folder: tuple[Path, Any]) -> ModelRunner:
    return make_runner(folder[0])


def tokens_of(runner: ModelRunner, sequences: list[HandSequence], count: int = 8, **how: int) -> list[list[int]]:
    made = HandDriver(runner, sequences, **how).generate(count)
    return [[token.token_id for token in tokens] for tokens in made]


def crowd(size: int) -> list[HandSequence]:
    return [HandSequence([3 + i, 9, 27 + i] * (1 + i % 4), SAMPLED, seed=100 + i) for i in range(size)]


@pytest.mark.parametrize("chunk", [1, 3, 5, 100])
def test_chunk_sizes_do_not_change_greedy_tokens(runner: ModelRunner, folder: tuple[Path, Any], chunk: int) -> None:
    ids = tokens_of(runner, [HandSequence(PROMPT)], chunk=chunk)[0]
    expected = folder[1].generate(torch.tensor([PROMPT]), max_new_tokens=8, do_sample=False, eos_token_id=-1)
    assert ids == expected[0, len(PROMPT) :].tolist()


@pytest.mark.parametrize("params", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_a_sequence_gives_the_same_tokens_alone_and_in_company(runner: ModelRunner, params: SamplingParams) -> None:
    alone = tokens_of(runner, [HandSequence(PROMPT, params, seed=7)])[0]
    together = tokens_of(runner, [*crowd(15), HandSequence(PROMPT, params, seed=7)])[-1]
    assert together == alone


def test_another_seed_gives_other_tokens(runner: ModelRunner) -> None:
    first, second = (tokens_of(runner, [HandSequence(PROMPT, SAMPLED, seed=seed)])[0] for seed in (1, 2))
    assert first != second


def test_a_resumed_sequence_continues_as_if_never_preempted(runner: ModelRunner) -> None:
    params = replace(SAMPLED, frequency_penalty=0.7, repetition_penalty=1.2)
    straight = tokens_of(runner, [HandSequence(PROMPT, params, seed=5)])[0]
    sequence = HandSequence(PROMPT, params, seed=5)
    HandDriver(runner, [sequence]).generate(4)
    sequence.block_table, sequence.num_computed = [], 0
    tokens_of(runner, [HandSequence([5, 6, 7]), sequence], count=4, chunk=6)
    assert sequence.token_ids[len(PROMPT) : len(PROMPT) + 8] == straight


def test_garbage_in_unused_kv_slots_changes_nothing(folder: tuple[Path, Any]) -> None:
    clean, dirty = make_runner(folder[0]), make_runner(folder[0])
    for cache in dirty._caches:
        cache.key.fill_(float("nan"))
        cache.value.fill_(float("nan"))
    assert tokens_of(dirty, crowd(6), chunk=3) == tokens_of(clean, crowd(6), chunk=3)


@pytest.mark.parametrize("chunk", [1, 4, 100])
def test_prompt_logprobs_equal_the_full_forward(runner: ModelRunner, folder: tuple[Path, Any], chunk: int) -> None:
    sequence = HandSequence(PROMPT, replace(GREEDY, prompt_logprobs=3))
    driver, found = HandDriver(runner, [sequence], chunk=chunk), list[Any]()
    while sequence.num_computed < len(PROMPT):
        found += driver.step(prompt_logprobs=True).prompt_logprobs[0]
    with torch.no_grad():
        expected = folder[1](torch.tensor([PROMPT])).logits[0].log_softmax(dim=-1)
    assert [entry[0] for entry in found] == PROMPT[1:]
    for position, (token_id, logprob, rank, top) in enumerate(found):
        assert logprob == pytest.approx(float(expected[position, token_id]), abs=1e-4)
        assert rank == 1 + int((expected[position] > expected[position, token_id]).sum())
        assert [pair[0] for pair in top] == expected[position].topk(3).indices.tolist()


@pytest.mark.parametrize("chunk", [2, 100])
def test_pooled_vectors_are_the_mean_hidden_state(runner: ModelRunner, folder: tuple[Path, Any], chunk: int) -> None:
    driver = HandDriver(runner, [HandSequence(PROMPT)], chunk=chunk)
    pooled: Mapping[int, abc.Sequence[float]] = {}
    while not pooled:
        pooled = driver.step(pool=True).pooled
    with torch.no_grad():
        hidden = folder[1].model(torch.tensor([PROMPT])).last_hidden_state[0]
    expected = torch.nn.functional.normalize(hidden.mean(dim=0), dim=0)
    torch.testing.assert_close(torch.tensor(pooled[0]), expected, atol=1e-5, rtol=0)


def test_pooled_vectors_may_be_the_last_hidden_state(folder: tuple[Path, Any]) -> None:
    runner = make_runner(folder[0], pooling="last")
    pooled = HandDriver(runner, [HandSequence(PROMPT)]).step(pool=True).pooled
    with torch.no_grad():
        hidden = folder[1].model(torch.tensor([PROMPT])).last_hidden_state[0]
    expected = torch.nn.functional.normalize(hidden[-1], dim=0)
    torch.testing.assert_close(torch.tensor(pooled[0]), expected, atol=1e-5, rtol=0)


def test_evidence_equals_the_raw_distribution(runner: ModelRunner, folder: tuple[Path, Any]) -> None:
    params = SamplingParams(temperature=0.7, top_k=5, logprobs=2, logit_bias={9: 4.0})
    token = HandDriver(runner, [HandSequence(PROMPT, params, seed=3)]).step().tokens[0]
    with torch.no_grad():
        logprobs = folder[1](torch.tensor([PROMPT])).logits[0, -1].log_softmax(dim=-1)
    probabilities = logprobs.exp()
    best = probabilities.topk(2).values
    assert token.logprob == pytest.approx(float(logprobs[token.token_id]), abs=1e-4)
    assert token.entropy == pytest.approx(float(-(probabilities * logprobs).sum()), abs=1e-3)
    assert token.margin == pytest.approx(float(best[0] - best[1]), abs=1e-4)
    assert [pair[0] for pair in token.top] == logprobs.topk(2).indices.tolist()


def test_entropy_is_reported_for_the_first_eight_positions_only(runner: ModelRunner) -> None:
    tokens = HandDriver(runner, [HandSequence(PROMPT)]).generate(10)[0]
    assert [token.entropy is not None for token in tokens] == [True] * 8 + [False] * 2
    assert all(token.logprob is not None for token in tokens)


class BrokenGrammar:
    def fill_bitmask(self, row: Any) -> None:
        raise EngineFault("the grammar broke")


def test_a_broken_grammar_ends_its_own_row_only(runner: ModelRunner) -> None:
    expected = tokens_of(runner, [HandSequence(PROMPT)], count=1)[0]
    broken = HandSequence(PROMPT, grammar=BrokenGrammar())
    result = HandDriver(runner, [HandSequence(PROMPT), broken]).step()
    assert {slot: token.token_id for slot, token in result.tokens.items()} == {0: expected[0]}
    assert list(result.faults) == [1]


def test_constraints_that_leave_no_token_are_an_input_error_of_that_row(runner: ModelRunner) -> None:
    params = replace(GREEDY, allowed_token_ids=(2,), min_tokens=1)
    result = HandDriver(runner, [HandSequence(PROMPT, params), HandSequence(PROMPT)]).step()
    assert list(result.tokens) == [1]
    error = result.faults[0]
    assert isinstance(error, InvalidInput)
    assert error.field == "allowed_token_ids"
    assert error.limit == "no token is allowed after 0 tokens beside `min_tokens`"


@pytest.fixture(scope="module")
def poisoned(tmp_path_factory: pytest.TempPathFactory) -> ModelRunner:
    """The same model, in which token 77 is not a number."""
    directory = tmp_path_factory.mktemp("poisoned")
    write_tiny_model(directory)
    runner = make_runner(directory)
    model: Any = runner._model
    with torch.inference_mode():
        model._shell.table[77] = float("nan")  # in memory: a file with such a number is refused while loading
    return runner


@pytest.mark.parametrize("packed", [False, True], ids=["as on a CPU", "as on a GPU"])
def test_values_that_are_not_finite_are_a_fault_of_that_row(
    runner: ModelRunner, poisoned: ModelRunner, packed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(poisoned._copies, "packed", packed)
    result = HandDriver(poisoned, [HandSequence([5, 77, 6]), HandSequence(PROMPT)]).step()
    assert result.tokens[1].token_id == tokens_of(runner, [HandSequence(PROMPT)], count=1)[0][0]
    assert "not finite" in str(result.faults[0])


def test_a_vector_that_is_not_finite_is_a_fault_of_that_input(poisoned: ModelRunner) -> None:
    result = HandDriver(poisoned, [HandSequence([5, 77, 6]), HandSequence(PROMPT)]).step(pool=True)
    assert (list(result.pooled), list(result.faults)) == ([1], [0])


def test_unloaded_weights_refuse_steps_and_come_back_the_same(folder: tuple[Path, Any]) -> None:
    runner = make_runner(folder[0])
    expected = tokens_of(runner, [HandSequence(PROMPT)])
    runner.release_weights()
    with pytest.raises(EngineUnavailable):
        HandDriver(runner, [HandSequence(PROMPT)]).step()
    runner.restore_weights()
    assert tokens_of(runner, [HandSequence(PROMPT)]) == expected


def test_a_table_too_short_for_its_tokens_is_refused(runner: ModelRunner) -> None:
    sequence = HandSequence(PROMPT, block_table=[1, 2])
    with pytest.raises(EngineFault, match="2 blocks for 13 tokens"):
        runner.execute(Step(1, (Work(0, sequence, 0, len(PROMPT), True, True),)))


def test_a_window_above_the_models_is_refused(folder: tuple[Path, Any]) -> None:
    with pytest.raises(InvalidInput, match="window is 256"):
        make_runner(folder[0], max_model_len=257)


def test_the_pool_is_sized_by_bytes_when_given(folder: tuple[Path, Any]) -> None:
    per_block = 2 * 2 * 4 * 2 * 8 * 4
    assert make_runner(folder[0], kv_cache_bytes=10 * per_block + 5).num_blocks == 10


def test_a_device_that_does_not_exist_is_refused(folder: tuple[Path, Any]) -> None:
    with pytest.raises(InvalidInput, match="auto, cpu or cuda"):
        make_runner(folder[0], device="meta")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"quantization": "fp3"}, "int8, int4, gguf"),
        ({"tensor_parallel_size": 2}, "one process"),
        ({"kernel_backend": "triton"}, "cannot run on cpu"),
    ],
    ids=["quantization", "tensor parallel", "back end"],
)
def test_what_cannot_run_here_is_refused_with_the_reason(
    folder: tuple[Path, Any], changes: dict[str, Any], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    with pytest.raises(InvalidInput, match=words) as caught:
        make_runner(folder[0], **changes)
    assert caught.value.field in changes


def test_codes_cannot_be_kept_where_the_checkpoint_has_none(folder: tuple[Path, Any]) -> None:
    with pytest.raises(UnsupportedModel, match="no GGUF codes"):
        make_runner(folder[0], quantization="gguf")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_every_precision_gives_finite_evidence(folder: tuple[Path, Any], dtype: str) -> None:
    token = HandDriver(make_runner(folder[0], dtype=dtype), [HandSequence(PROMPT)]).step().tokens[0]
    assert token.logprob is not None
    assert -20 < token.logprob <= 0


def test_loading_reports_progress_up_to_ready(folder: tuple[Path, Any]) -> None:
    seen: list[tuple[str, float]] = []
    config = EngineConfig(str(folder[0]), num_kv_blocks=8, device="cpu")
    ModelRunner(config, lambda stage, percent: seen.append((stage, percent)))
    assert seen[-1] == ("ready", 100.0)
    assert ("weights", 100.0) in seen


def test_loading_and_running_needs_no_transformers(folder: tuple[Path, Any]) -> None:
    """Its import takes seconds, and the engine must be ready within ten."""
    program = (
        "import sys\n"
        "from engine.config import EngineConfig\n"
        "from engine.execution.runner import ModelRunner\n"
        f"runner = ModelRunner(EngineConfig({str(folder[0])!r}, num_kv_blocks=8, device='cpu'))\n"
        "runner.tokenizer.apply_chat_template([{'role': 'user', 'content': 'x'}])\n"
        "sys.exit('transformers' in sys.modules or 'gguf' in sys.modules)\n"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_host_time_of_sixty_four_sequences_stays_small(folder: tuple[Path, Any]) -> None:
    """The target is one millisecond; the bound leaves room for a busy machine, the least of many steps little."""
    runner = make_runner(folder[0], max_num_seqs=64, num_kv_blocks=1024)
    driver = HandDriver(runner, [HandSequence(PROMPT, SAMPLED, seed=seed) for seed in range(64)])
    driver.generate(9)
    assert min(driver.step().host_s for _ in range(30)) < 0.003
