"""Quantized checkpoints are read back as they were meant, and calibration leaves less error than rounding."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from engine.errors import InvalidInput, UnsupportedModel
from engine.quantization.awq import best_scales
from engine.quantization.gptq import damping_for, rounded_by_hessian
from engine.quantization.request import QuantizeRequest
from engine.quantization.rounding import Grid, nearest_bytes, nearest_floats, nearest_integers
from engine.quantization.run import quantize
from engine.quantization.writers import (
    Tensors,
    awq_config,
    awq_tensors,
    byte_tensors,
    compressed_config,
    float_tensors,
    fp8_config,
    gptq_config,
    gptq_tensors,
    int8_config,
    packed_tensors,
)
from engine.requests import SamplingParams
from engine.serving.llm import LLM
from engine.weights.loader import open_checkpoint
from engine.weights.quantized import format_of
from kernels.contracts import CodedWeight
from kernels.reference.dequantize import dequantize
from tests.fakes.tiny_model import write_tiny_model

TEXT = "the quick brown fox jumps over the lazy dog. la esclusa abre dos veces al día. " * 40


class Raw(dict[str, Tensor]):
    """Implements `RawTensors`."""

    def raw(self, name: str) -> Tensor:
        return self[name]


def correlated(rows: int, width: int) -> Tensor:
    """Inputs of which a few are large and all depend on a few others, as in a real layer."""
    x = torch.randn(rows, 8) @ torch.randn(8, width) + 0.1 * torch.randn(rows, width)
    x[:, ::17] *= 20
    return x


def lost(weight: Tensor, coded: CodedWeight, x: Tensor) -> float:
    return float(((x @ weight.T - x @ dequantize(coded).T) ** 2).mean())


@pytest.mark.parametrize("bits", [2, 3, 4, 8])
@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("act_order", [True, False])
def test_gptq_loses_less_than_rounding(bits: int, symmetric: bool, act_order: bool) -> None:
    weight, x, grid = torch.randn(32, 256), correlated(600, 256), Grid(bits, 64, symmetric)
    coded = rounded_by_hessian(weight, x.T @ x, grid, act_order=act_order)
    assert lost(weight, coded, x) < 0.5 * lost(weight, nearest_integers(weight, grid), x)
    assert (coded.columns is not None) == act_order
    assert int(coded.codes.max()) <= grid.highest


def test_gptq_knows_errors_of_a_block_when_a_group_crosses_it() -> None:
    weight, x, grid = torch.randn(16, 192), correlated(400, 192), Grid(4, 96, symmetric=False)
    coded = rounded_by_hessian(weight, x.T @ x, grid)
    assert lost(weight, coded, x) < lost(weight, nearest_integers(weight, grid), x)


def test_few_rows_are_trusted_less() -> None:
    """Errors carried by the accidents of a few rows cost more on other rows than plain rounding."""
    assert damping_for(100, 10**12) == pytest.approx(0.01)
    torch.manual_seed(0)
    weight, grid = torch.randn(32, 256), Grid(4, 64)
    mixing = torch.eye(256) + 0.1 * torch.randn(256, 256)
    seen, other = torch.randn(200, 256) @ mixing, torch.randn(2000, 256) @ mixing
    hessian = seen.T @ seen
    trusting = lost(weight, rounded_by_hessian(weight, hessian, grid), other)
    careful = lost(weight, rounded_by_hessian(weight, hessian, grid, damping=damping_for(256, 200)), other)
    assert careful < lost(weight, nearest_integers(weight, grid), other) < trusting


def test_inputs_that_never_come_cost_nothing() -> None:
    weight, x = torch.randn(8, 64), correlated(200, 64)
    x[:, 5] = 0.0
    coded = rounded_by_hessian(weight, x.T @ x, Grid(4, 32))
    assert not dequantize(coded)[:, 5].any()


def test_awq_spares_the_channels_that_matter() -> None:
    weight, x, grid = torch.randn(32, 128), torch.randn(500, 128), Grid(4, 64)
    x[:, ::17] *= 20
    scales = best_scales([weight], x.T @ x, x.abs().mean(dim=0), grid)
    scaled = dequantize(nearest_integers(weight * scales, grid)) / scales
    assert float(((x @ (weight - scaled).T) ** 2).mean()) < 0.7 * lost(weight, nearest_integers(weight, grid), x)
    assert scales[::17].min() > scales[1::17].max()


WRITTEN: dict[str, Callable[[Tensor], tuple[Tensors, dict[str, object], CodedWeight]]] = {}


def form(name: str, make: Callable[[Tensor], tuple[Tensors, dict[str, object], CodedWeight]]) -> None:
    WRITTEN[name] = make


for _bits in (2, 3, 4, 8):
    for _v2 in (False, True):
        for _symmetric in (False, True):

            def _gptq(
                w: Tensor, b: int = _bits, v: bool = _v2, s: bool = _symmetric
            ) -> tuple[Tensors, dict[str, object], CodedWeight]:
                coded = nearest_integers(w, Grid(b, 32, s))
                return gptq_tensors("m", coded, v2=v), gptq_config(b, 32, symmetric=s, act_order=False, v2=v), coded

            form(f"gptq-{_bits}-{'v2' if _v2 else 'v1'}-{'sym' if _symmetric else 'asym'}", _gptq)

        def _packed(w: Tensor, b: int = _bits, s: bool = _v2) -> tuple[Tensors, dict[str, object], CodedWeight]:
            coded = nearest_integers(w, Grid(b, 32, s))
            scheme = {"num_bits": b, "group_size": 32, "strategy": "group", "symmetric": s}
            return packed_tensors("m", coded, torch.float16), compressed_config("pack-quantized", scheme, None), coded

        form(f"packed-{_bits}-{'sym' if _v2 else 'asym'}", _packed)


def _awq(w: Tensor) -> tuple[Tensors, dict[str, object], CodedWeight]:
    coded = nearest_integers(w, Grid(4, 32))
    return awq_tensors("m", coded), awq_config(32), coded


def _act_order(w: Tensor) -> tuple[Tensors, dict[str, object], CodedWeight]:
    coded = rounded_by_hessian(w, torch.diag(torch.rand(w.shape[1]) + 0.1), Grid(4, 32), act_order=True)
    return gptq_tensors("m", coded), gptq_config(4, 32, symmetric=False, act_order=True), coded


def _bytes(w: Tensor) -> tuple[Tensors, dict[str, object], CodedWeight]:
    coded = nearest_bytes(w)
    return byte_tensors("m", coded), int8_config(), coded


def _tiles(w: Tensor) -> tuple[Tensors, dict[str, object], CodedWeight]:
    coded = nearest_floats(w, (16, 48))
    return float_tensors("m", coded), fp8_config((16, 48)), coded


def _channels(w: Tensor) -> tuple[Tensors, dict[str, object], CodedWeight]:
    coded = nearest_floats(w, None)
    return float_tensors("m", coded, 0.5), fp8_config(None, static=True), coded


form("awq", _awq)
form("gptq-act-order", _act_order)
form("int8", _bytes)
form("fp8-tiles", _tiles)
form("fp8-channels", _channels)


@pytest.mark.parametrize("name", WRITTEN)
def test_what_is_written_is_read_bit_for_bit(name: str) -> None:
    weight = torch.randn(32, 96)
    tensors, config, coded = WRITTEN[name](weight)
    reader = format_of({"quantization_config": config})
    assert reader is not None
    assert reader.holds("m", Raw(tensors))
    read = reader.read("m", (32, 96), Raw(tensors))
    assert torch.equal(dequantize(read), dequantize(coded))
    assert float((dequantize(read) - weight).abs().max()) < 3.0


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tiny")
    write_tiny_model(path, hidden_size=64, intermediate_size=128, num_attention_heads=4, num_key_value_heads=2)
    return path


def request(model: Path, to: str, out: Path, **changes: object) -> QuantizeRequest:
    return QuantizeRequest(str(model), to, out, **({"calibration": TEXT, "windows": 4} | changes))  # type: ignore[arg-type]


def quiet(stage: str, done: int, total: int) -> None:
    """Nobody is watching."""


@pytest.mark.parametrize("to", ["awq", "gptq", "fp8", "int8"])
def test_a_model_becomes_a_checkpoint_that_the_engine_serves(model: Path, tmp_path: Path, to: str) -> None:
    stages: list[tuple[str, int, int]] = []
    written = quantize(request(model, to, tmp_path / "out"), lambda *stage: stages.append(stage))
    assert stages[-1][1] == stages[-1][2]
    assert written.bytes_after < written.bytes_before
    checkpoint = open_checkpoint(tmp_path / "out")
    assert checkpoint.format is not None
    assert checkpoint.format.name == ("compressed-tensors" if to == "int8" else to)
    answers = []
    for path in (model, tmp_path / "out"):
        llm = LLM(str(path), dtype="float32", cache_salt_required=False)
        parameters = SamplingParams(max_tokens=1, temperature=0.0, prompt_logprobs=0)
        (output,) = llm.generate(["the quick brown fox jumps over the lazy dog"], parameters, use_tqdm=False)
        llm.close()
        assert output.prompt_logprobs is not None
        answers.append(torch.tensor([next(iter(row.values())).logprob for row in output.prompt_logprobs if row]))
    # Random weights are the worst to round; codes read wrongly would be nats away.
    assert float((answers[0] - answers[1]).abs().mean()) < ({"awq": 0.5, "gptq": 0.5, "fp8": 0.25, "int8": 0.1}[to])
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_act_order_and_zero_points_may_be_asked_for(model: Path, tmp_path: Path) -> None:
    quantize(request(model, "gptq", tmp_path / "out", act_order=True, symmetric=False, bits=3), quiet)
    config = json.loads((tmp_path / "out" / "config.json").read_text())["quantization_config"]
    assert (config["bits"], config["desc_act"], config["sym"]) == (3, True, False)
    LLM(str(tmp_path / "out"), dtype="float32").close()


def test_nothing_is_left_where_it_fails(model: Path, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="tokens"):
        quantize(request(model, "awq", tmp_path / "out", calibration="short"), quiet)
    assert list(tmp_path.iterdir()) == []


def test_what_does_not_go_is_refused_by_name(model: Path, tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    for changes, said in (
        ({"to": "nf4"}, "must be one of"),
        ({"to": "awq", "bits": 8}, "awq has 4 bits"),
        ({"to": "gptq", "group": 4}, "at least 16"),
        ({"to": "awq", "out": tmp_path / "full"}, "not empty"),
    ):
        with pytest.raises(InvalidInput, match=said):
            quantize(request(model, **({"to": "awq", "out": tmp_path / "new"} | changes)), quiet)  # type: ignore[arg-type]
    quantize(request(model, "int8", tmp_path / "int8"), quiet)
    with pytest.raises(InvalidInput, match="stored as compressed-tensors already"):
        quantize(request(tmp_path / "int8", "awq", tmp_path / "again"), quiet)
    config = json.loads((model / "config.json").read_text())
    gemma = tmp_path / "gemma"
    gemma.mkdir()
    (gemma / "model.safetensors").write_bytes((model / "model.safetensors").read_bytes())
    (gemma / "config.json").write_text(json.dumps(config | {"architectures": ["Gemma2ForCausalLM"]}))
    with pytest.raises(UnsupportedModel, match="Gemma2ForCausalLM"):
        quantize(request(gemma, "awq", tmp_path / "no"), quiet)


def test_without_a_text_the_model_writes_its_own(model: Path, tmp_path: Path) -> None:
    written = quantize(request(model, "awq", tmp_path / "out", calibration="", windows=4, window_tokens=64), quiet)
    assert written.calibration_tokens >= 128
