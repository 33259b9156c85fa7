"""The choice of a back end per op: whatever it chose is what a model runs, also inside a decoder stack."""

from __future__ import annotations

import importlib.util
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

import kernels
from engine.config import EngineConfig
from engine.execution.runner import ModelRunner
from kernels import dispatch
from kernels.contracts import FAMILIES, OP_FILES, STACK_OPS, STACK_PARTS, Ops
from kernels.dispatch import PROBES, Availability
from tests.fakes.hand_steps import HandDriver, HandSequence
from tests.fakes.tiny_model import write_tiny_model
from tests.kernels.test_decoder import Model

PROMPT = [40, 50, 60, 70, 80, 90]
REACHED_BY_LLAMA = ("rms_norm", "add_rms_norm", "rope", "silu_mul", "kv_write", "paged_attention", "linear")
MODULE = """
import functools
from kernels.reference import {file} as inner
calls = {calls}
def counting(op):
    function = getattr(inner, op)
    @functools.wraps(function)
    def call(*args, **more):
        calls[op] = calls.get(op, 0) + 1
        return function(*args, **more)
    return call
globals().update({{op: counting(op) for op in {ops}}})
"""


def family_of(op: str) -> set[str]:
    return set(next((names for names in FAMILIES if op in names), {op}))


class CountingBackend:
    """Puts a back end before all others that offers an op (with its family) and counts how often each is called."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._folder = folder / "counting"
        self._folder.mkdir()
        (self._folder / "__init__.py").write_text("")
        self._files: set[str] = set()
        monkeypatch.setattr(kernels, "__path__", [*kernels.__path__, str(folder)])
        probes = {"counting": lambda device: Availability(True, detail="counts"), **PROBES}
        monkeypatch.setattr(dispatch, "PROBES", probes)

    def offer(self, op: str) -> None:
        ops = family_of(op)
        for file in {OP_FILES[name] for name in ops}:
            names = sorted(name for name in ops if OP_FILES[name] == file)
            (self._folder / f"{file}.py").write_text(MODULE.format(file=file, ops=names, calls={}))
            self._files.add(file)

    def calls(self) -> Counter[str]:
        modules = [sys.modules[f"kernels.counting.{file}"] for file in self._files]
        return Counter({op: count for module in modules for op, count in module.calls.items()})


@pytest.fixture
def counting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    yield CountingBackend(tmp_path, monkeypatch)
    for name in [name for name in sys.modules if name.startswith("kernels.counting")]:
        del sys.modules[name]


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("tiny")
    write_tiny_model(directory)
    return directory


def tokens(directory: Path) -> list[int]:
    config = EngineConfig(str(directory), dtype="float32", device="cpu", block_size=4, num_kv_blocks=64, max_num_seqs=2)
    (made,) = HandDriver(ModelRunner(config), [HandSequence(PROMPT)], chunk=4).generate(6)
    return [token.token_id for token in made]


@pytest.mark.parametrize("op", REACHED_BY_LLAMA)
def test_a_llama_like_model_reaches_the_op_of_any_back_end(counting: CountingBackend, llama: Path, op: str) -> None:
    expected = tokens(llama)
    counting.offer(op)
    assert tokens(llama) == expected
    assert counting.calls()[op] > 0


@pytest.mark.parametrize("op", STACK_PARTS)
def test_the_composed_stack_calls_the_chosen_op(counting: CountingBackend, reference: Ops, op: str) -> None:
    model = Model(head_norms=True, activation="gelu_tanh" if op == "gelu_tanh_mul" else "silu")
    batch, hidden = model.batch(), torch.randn(31, model.hidden)
    expected = model.run(reference, batch, hidden)
    counting.offer(op)
    mixed = dispatch.load("auto", device="cpu")
    got = model.run(mixed, batch, hidden)
    assert counting.calls()[op] > 0
    for ours, theirs in zip(got, expected, strict=True):
        torch.testing.assert_close(ours, theirs, atol=2e-4, rtol=2e-4)


def test_a_gpu_without_triton_names_the_extra_that_brings_it(monkeypatch: pytest.MonkeyPatch) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "triton" else found(name))
    availability = PROBES["triton"](torch.device("cuda"))
    assert not availability.usable
    assert "esclusa[gpu]" in availability.reason


def test_a_fused_stack_is_chosen_only_with_all_of_its_parts(cpu: Ops, counting: CountingBackend) -> None:
    alone = {choice.op: choice.backend for choice in cpu.report()}
    assert {alone[op] for op in (*STACK_OPS, *STACK_PARTS)} == {"cpu"}
    counting.offer("rms_norm")
    choices = {choice.op: choice for choice in dispatch.load("auto", device="cpu").report()}
    assert choices["rms_norm"].backend == "counting"
    assert choices["linear"].backend == "cpu"
    assert choices["decoder_stack"].backend == choices["pack_stack"].backend == "reference"
    assert choices["decoder_stack"].off["cpu"] == "runs its own ops alone, and counting was chosen for rms_norm"


def test_interpreted_kernels_run_only_where_they_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    for choice in dispatch.load("auto", device="cpu").report():
        assert choice.backend != "triton"
        assert "ask for it by name" in choice.off["triton"] or "no such op" in choice.off["triton"]
    named = {choice.op: choice for choice in dispatch.load("triton", device="cpu").report()}
    assert named["rms_norm"].backend == "triton"
    assert "interpreted" in named["rms_norm"].detail
