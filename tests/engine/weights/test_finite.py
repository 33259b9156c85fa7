"""Weights that are not finite are refused while they are read, by the tensor's name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from engine.errors import WeightsMismatch
from engine.weights.finite import require_finite, require_finite_encoded
from engine.weights.loader import open_checkpoint
from kernels.gguf_formats import FORMATS, GgufFormat
from tests.engine.weights.test_dequantize import QUANTIZED, random_blocks
from tests.engine.weights.test_safetensors import CONFIG

PLAIN = {FORMATS["F32"]: torch.float32, FORMATS["F16"]: torch.float16, FORMATS["BF16"]: torch.bfloat16}
BAD = [float("nan"), float("inf"), float("-inf")]
PLACES = [(quant, at) for quant in QUANTIZED for at in quant.halves_at]


@pytest.mark.parametrize("value", BAD, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_a_number_that_is_not_finite_is_found_wherever_it_stands(dtype: torch.dtype, value: float) -> None:
    for at in (0, 65_535, 65_536, 199_999):
        tensor = torch.full((200_000,), torch.finfo(dtype).max, dtype=dtype)
        require_finite("w", tensor)
        tensor[at] = value
        with pytest.raises(WeightsMismatch, match=r"tensor w .*not finite"):
            require_finite("w", tensor)


@pytest.mark.parametrize("value", BAD, ids=str)
@pytest.mark.parametrize(("quant", "at"), PLACES, ids=[f"{quant.name}-{at}" for quant, at in PLACES])
def test_a_scale_or_minimum_that_is_not_finite_is_found(quant: GgufFormat, at: int, value: float) -> None:
    raw = random_blocks(quant, rows=7, blocks=3).ravel()
    require_finite_encoded("w", raw, quant)
    size = quant.nbytes
    for block in (0, 20):
        damaged = raw.copy()
        damaged[block * size + at : block * size + at + 2] = np.array([value], np.float16).view(np.uint8)
        with np.errstate(invalid="ignore"):
            expected = gguf.quants.dequantize(damaged.reshape(7, -1), gguf.GGMLQuantizationType(quant.id))
        assert not np.isfinite(expected).all()
        with pytest.raises(WeightsMismatch, match="tensor w"):
            require_finite_encoded("w", damaged, quant)


@pytest.mark.parametrize("quant", QUANTIZED, ids=lambda quant: quant.name)
def test_finite_scales_make_finite_weights_whatever_the_codes(quant: GgufFormat) -> None:
    """What is not looked at, the codes, cannot make a weight that is not finite."""
    raw = random_blocks(quant, rows=16, blocks=8)
    for at in quant.halves_at:
        blocks = raw.reshape(-1, quant.nbytes)
        blocks[:, at : at + 2] = np.array([np.finfo(np.float16).max], np.float16).view(np.uint8)
    require_finite_encoded("w", raw.ravel(), quant)
    assert np.isfinite(gguf.quants.dequantize(raw, gguf.GGMLQuantizationType(quant.id))).all()


@pytest.mark.parametrize("quant", PLAIN, ids=lambda quant: quant.name)
def test_a_plain_tensor_of_a_gguf_file_is_read_number_by_number(quant: GgufFormat) -> None:
    values = torch.ones(100, dtype=PLAIN[quant])
    require_finite_encoded("w", values.view(torch.uint8).numpy(), quant)
    values[99] = float("nan")
    with pytest.raises(WeightsMismatch, match="tensor w"):
        require_finite_encoded("w", values.view(torch.uint8).numpy(), quant)


@pytest.mark.parametrize("quant", QUANTIZED, ids=lambda quant: quant.name)
def test_a_stretch_of_random_bytes_over_blocks_is_found(quant: GgufFormat) -> None:
    """One random float16 in 32 is not finite: of some hundred blocks none being so would take 10^-13 luck."""
    raw = random_blocks(quant, rows=40, blocks=40).ravel()
    raw[: quant.nbytes * 1000] = np.random.default_rng(0).integers(0, 256, quant.nbytes * 1000, dtype=np.uint8)
    with pytest.raises(WeightsMismatch, match="tensor w"):
        require_finite_encoded("w", raw, quant)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    return tmp_path


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_a_directory_with_such_a_number_is_refused_by_the_tensors_name(directory: Path, dtype: torch.dtype) -> None:
    parts = {"good": torch.ones(8, dtype=dtype), "bad": torch.ones(8, dtype=dtype)}
    parts["bad"][3] = float("nan")
    save_file(parts, directory / "model.safetensors")
    checkpoint = open_checkpoint(directory)
    assert checkpoint.take("good", (8,), torch.float32).sum() == 8
    with pytest.raises(WeightsMismatch, match="tensor bad holds numbers that are not finite"):
        checkpoint.take("bad", (8,), torch.float32)


def test_weights_that_do_not_fit_float16_name_the_type_that_they_fit(directory: Path) -> None:
    save_file({"wide": torch.tensor([1.0, 1e6])}, directory / "model.safetensors")
    assert open_checkpoint(directory).take("wide", (2,), torch.bfloat16).isfinite().all()
    with pytest.raises(WeightsMismatch) as refused:
        open_checkpoint(directory).take("wide", (2,), torch.float16)
    assert "bfloat16" in str(refused.value.hint)


def write_file(path: Path, tensors: dict[str, Any], quant: gguf.GGMLQuantizationType | None = None) -> Path:
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_block_count(1)
    writer.add_context_length(32)
    writer.add_embedding_length(64)
    writer.add_feed_forward_length(64)
    writer.add_head_count(2)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_eos_token_id(2)
    writer.add_token_list(["a"] * 8)
    for name, data in {"token_embd.weight": np.ones((8, 64), np.float32), **tensors}.items():
        writer.add_tensor(name, data, raw_dtype=quant if data.dtype == np.uint8 else None)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_codes_that_stay_packed_are_checked_too(tmp_path: Path) -> None:
    name, packed = "blk.0.ffn_down.weight", gguf.GGMLQuantizationType.Q8_0
    blocks = gguf.quants.quantize(np.ones((64, 64), np.float32), packed)
    blocks[5, 0:2] = np.array([np.inf], np.float16).view(np.uint8)
    file = write_file(tmp_path / "bad.gguf", {name: blocks}, packed)
    for read in ("take_codes", "take"):
        arguments = ((64, 64),) if read == "take_codes" else ((64, 64), torch.float32)
        with pytest.raises(WeightsMismatch, match=r"model\.layers\.0\.mlp\.down_proj\.weight"):
            getattr(open_checkpoint(file), read)("model.layers.0.mlp.down_proj.weight", *arguments)


def test_rotary_factors_that_are_not_finite_are_refused(tmp_path: Path) -> None:
    factors = np.ones(16, np.float32)
    factors[3] = np.nan
    with pytest.raises(WeightsMismatch, match=r"rope_freqs\.weight"):
        open_checkpoint(write_file(tmp_path / "bad.gguf", {"rope_freqs.weight": factors}))
