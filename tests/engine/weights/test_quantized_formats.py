"""What the tensors of quantized checkpoints mean. The packing here is written out bit by bit, from the layouts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from engine.errors import InvalidInput, UnsupportedModel, WeightsMismatch
from engine.weights.formats.format import CodedFormat
from engine.weights.quantized import format_of, quantization_on_load
from kernels.contracts import FloatWeight, IntWeight
from kernels.reference.dequantize import dequantize

OUT, IN, GROUP = 16, 64, 32


class Tensors(dict[str, Tensor]):
    """Implements `RawTensors`."""

    def raw(self, name: str) -> Tensor:
        return self[name]


def bit_stream(codes: Sequence[int], bits: int) -> list[int]:
    """Signed 32-bit words of a stream of bits, low bits first."""
    number = sum(code << bits * place for place, code in enumerate(codes))
    words = [number >> 32 * word & 0xFFFF_FFFF for word in range(-(-len(codes) * bits // 32))]
    return [word - 2**32 if word >= 2**31 else word for word in words]


def rows_as_words(codes: Tensor, bits: int) -> Tensor:
    return torch.tensor([bit_stream(row, bits) for row in codes.tolist()], dtype=torch.int32)


def reading(config: dict[str, Any]) -> CodedFormat:
    found = format_of({"quantization_config": config})
    assert found is not None
    return found


class Matrix:
    """Random codes, zero points and scales, and the weight that they mean."""

    def __init__(self, bits: int = 4, group: int = GROUP, inputs: int = IN) -> None:
        groups = -(-inputs // group)
        self.bits, self.group, self.inputs = bits, group, inputs
        self.codes = torch.randint(0, 2**bits, (OUT, inputs))
        self.zero = torch.randint(0, 2**bits, (OUT, groups))
        self.scale = (torch.rand(OUT, groups) + 0.1).half()

    def dense(self, zero: Tensor | None = None, index: Tensor | None = None) -> Tensor:
        index = torch.arange(self.inputs) // self.group if index is None else index
        zero = self.zero if zero is None else zero
        return (self.codes - zero[:, index]).float() * self.scale.float()[:, index]

    def gptq(self, stored_zero: Tensor, index: Tensor | None = None) -> Tensors:
        tensors = Tensors(
            {
                "m.qweight": rows_as_words(self.codes, self.bits).T.contiguous(),
                "m.qzeros": rows_as_words(stored_zero.T, self.bits),
                "m.scales": self.scale.T.contiguous(),
            }
        )
        if index is not None:
            tensors["m.g_idx"] = index.int()
        return tensors


def gptq(bits: int = 4, **changes: Any) -> CodedFormat:
    return reading(
        {"quant_method": "gptq", "bits": bits, "group_size": GROUP, "sym": False, "desc_act": False} | changes
    )


@pytest.mark.parametrize("bits", [2, 3, 4, 8])
def test_gptq_v2_stores_zero_points_as_they_are(bits: int) -> None:
    matrix = Matrix(bits)
    weight = gptq(bits, checkpoint_format="gptq_v2").read("m", (OUT, IN), matrix.gptq(matrix.zero))
    assert isinstance(weight, IntWeight)
    assert torch.equal(dequantize(weight), matrix.dense())
    assert (weight.bits, weight.group, weight.columns) == (bits, GROUP, None)


@pytest.mark.parametrize("bits", [2, 3, 4, 8])
def test_gptq_v1_stores_zero_points_minus_one_and_wraps_each_alone(bits: int) -> None:
    matrix = Matrix(bits)
    matrix.zero[0, 0] = 0
    stored = (matrix.zero - 1) % 2**bits
    weight = gptq(bits).read("m", (OUT, IN), matrix.gptq(stored))
    assert torch.equal(dequantize(weight), matrix.dense())


@pytest.mark.parametrize("bits", [2, 3, 4, 8])
def test_gptqmodel_wrote_v1_by_one_subtraction_a_word(bits: int) -> None:
    matrix = Matrix(bits)
    matrix.zero[3, :] = 0  # a borrow into the next output's zero point
    tensors = matrix.gptq(matrix.zero)
    ones = rows_as_words(torch.ones(1, OUT, dtype=torch.int64), bits).long() & 0xFFFF_FFFF
    less = (tensors["m.qzeros"].long() - ones) & 0xFFFF_FFFF
    tensors["m.qzeros"] = torch.where(less >= 2**31, less - 2**32, less).int()
    whole = gptq(bits, meta={"quantizer": ["gptqmodel:1.4.0"]})
    if bits == 3:
        # A code of 3 bits that crosses words: the 1 is added to each word alone, so only words without a borrow differ.
        tensors = matrix.gptq((matrix.zero.clamp_min(1) - 1) % 8)
        matrix.zero = matrix.zero.clamp_min(1)
    assert torch.equal(dequantize(whole.read("m", (OUT, IN), tensors)), matrix.dense())


def test_symmetric_gptq_never_reads_its_zero_points() -> None:
    matrix, middle = Matrix(), torch.full((OUT, IN // GROUP), 8)
    for stored in (middle, middle - 1, torch.zeros_like(middle)):
        weight = gptq(sym=True).read("m", (OUT, IN), matrix.gptq(stored))
        assert torch.equal(dequantize(weight), matrix.dense(middle))


def test_act_order_is_sorted_away() -> None:
    matrix = Matrix()
    index = (torch.arange(IN) // GROUP)[torch.randperm(IN)]
    weight = gptq(desc_act=True, checkpoint_format="gptq_v2").read("m", (OUT, IN), matrix.gptq(matrix.zero, index))
    assert isinstance(weight, IntWeight)
    assert weight.columns is not None
    assert torch.equal(dequantize(weight), matrix.dense(index=index))


def test_an_index_in_order_is_no_act_order() -> None:
    matrix = Matrix()
    weight = gptq(desc_act=True).read("m", (OUT, IN), matrix.gptq(matrix.zero, torch.arange(IN) // GROUP))
    assert isinstance(weight, IntWeight)
    assert weight.columns is None


def test_groups_of_other_sizes_are_refused() -> None:
    matrix, index = Matrix(), torch.zeros(IN, dtype=torch.int64)
    with pytest.raises(UnsupportedModel, match="g_idx"):
        gptq().read("m", (OUT, IN), matrix.gptq(matrix.zero, index))


def test_a_group_of_minus_one_is_the_whole_row() -> None:
    matrix = Matrix(group=IN)
    weight = gptq(group_size=-1, checkpoint_format="gptq_v2").read("m", (OUT, IN), matrix.gptq(matrix.zero))
    assert torch.equal(dequantize(weight), matrix.dense())


def test_dynamic_rules_change_single_modules() -> None:
    matrix, middle = Matrix(bits=8, group=16), torch.full((OUT, 4), 128)
    rules = {"+:.*special.*": {"bits": 8, "group_size": 16, "sym": True}, "-:.*dense.*": {}}
    tensors = Tensors({f"special.{name}": tensor for name, tensor in matrix.gptq(middle).items()})
    weight = gptq(dynamic=rules).read("special.m", (OUT, IN), tensors)
    assert torch.equal(dequantize(weight), matrix.dense(middle))


def test_a_pattern_that_could_be_matched_for_hours_is_refused() -> None:
    with pytest.raises(UnsupportedModel, match="safely"):
        gptq(dynamic={"+:(a+)+$": {}})
    with pytest.raises(WeightsMismatch, match="regular expression"):
        gptq(dynamic={"+:[": {}})


def awq_words(rows: Tensor) -> Tensor:
    """Nibble i of a word is output 0, 2, 4, 6, 1, 3, 5 or 7 of its eight."""
    order = [0, 2, 4, 6, 1, 3, 5, 7]
    words = [
        [bit_stream([row[8 * word + output] for output in order], 4)[0] for word in range(len(row) // 8)]
        for row in rows.tolist()
    ]
    return torch.tensor(words, dtype=torch.int32)


AWQ = {"quant_method": "awq", "bits": 4, "group_size": GROUP, "zero_point": True, "version": "gemm"}


def test_awq_interleaves_its_outputs_and_has_true_zero_points() -> None:
    matrix = Matrix()
    tensors = Tensors(
        {"m.qweight": awq_words(matrix.codes.T), "m.qzeros": awq_words(matrix.zero.T), "m.scales": matrix.scale.T}
    )
    weight = reading(AWQ | {"modules_to_not_convert": None}).read("m", (OUT, IN), tensors)
    assert torch.equal(dequantize(weight), matrix.dense())


@pytest.mark.parametrize(
    ("config", "named"),
    [
        (AWQ | {"version": "gemv"}, "gemv"),
        (AWQ | {"backend": "llm-awq"}, "llm-awq"),
        (AWQ | {"bits": 8}, "8 bits"),
        ({"quant_method": "gptq", "bits": 5}, "5 bits"),
        ({"quant_method": "gptq", "bits": 4, "checkpoint_format": "marlin"}, "marlin"),
        ({"quant_method": "fp8", "fmt": "e5m2"}, "e5m2"),
        ({"quant_method": "compressed-tensors", "format": "marlin-24"}, "marlin-24"),
        (
            {
                "quant_method": "compressed-tensors",
                "config_groups": {"a": {"weights": {"type": "float", "num_bits": 4}}},
            },
            "float with 4 bits",
        ),
        ({"quant_method": "bitsandbytes", "bits": 4}, "bitsandbytes"),
        ({"quant_method": "auto-round"}, "AutoRound"),
    ],
)
def test_what_is_not_read_is_refused_by_name_with_what_would_be(config: dict[str, Any], named: str) -> None:
    with pytest.raises(UnsupportedModel, match=named) as refusal:
        format_of({"quantization_config": config})
    assert refusal.value.hint


def compressed(layout: str, weights: dict[str, Any], acts: dict[str, Any] | None = None) -> CodedFormat:
    group = {"targets": ["Linear"], "weights": weights, "input_activations": acts}
    return reading({"quant_method": "compressed-tensors", "format": layout, "config_groups": {"group_0": group}})


@pytest.mark.parametrize("bits", [2, 3, 4, 8])
@pytest.mark.parametrize("packed_zero", [True, False])
def test_pack_quantized_packs_codes_along_inputs_and_zero_points_along_outputs(bits: int, packed_zero: bool) -> None:
    matrix, middle = Matrix(bits), 2 ** (bits - 1)
    tensors = Tensors(
        {
            "m.weight_packed": rows_as_words(matrix.codes, bits),
            "m.weight_scale": matrix.scale.bfloat16(),
            "m.weight_shape": torch.tensor([OUT, IN]),
            "m.weight_zero_point": rows_as_words(matrix.zero.T, bits).T.contiguous()
            if packed_zero
            else (matrix.zero - middle).to(torch.int8),
        }
    )
    matrix.scale = matrix.scale.bfloat16()
    scheme = {"num_bits": bits, "type": "int", "symmetric": False, "strategy": "group", "group_size": GROUP}
    weight = compressed("pack-quantized", scheme).read("m", (OUT, IN), tensors)
    assert torch.equal(dequantize(weight), matrix.dense())


def test_symmetric_pack_quantized_has_its_zero_in_the_middle_and_may_be_act_ordered() -> None:
    matrix, index = Matrix(), (torch.arange(IN) // GROUP)[torch.randperm(IN)]
    tensors = Tensors(
        {
            "m.weight_packed": rows_as_words(matrix.codes, 4),
            "m.weight_scale": matrix.scale,
            "m.weight_g_idx": index.int(),
        }
    )
    scheme = {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": GROUP}
    weight = compressed("pack-quantized", scheme).read("m", (OUT, IN), tensors)
    assert torch.equal(dequantize(weight), matrix.dense(torch.full_like(matrix.zero, 8), index))


def test_int_quantized_keeps_bytes_and_rounds_activations() -> None:
    codes, scale = torch.randint(-128, 128, (OUT, IN)), torch.rand(OUT, 1) + 0.1
    tensors = Tensors({"m.weight": codes.to(torch.int8), "m.weight_scale": scale})
    scheme = {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "channel"}
    acts = {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "token", "dynamic": True}
    weight = compressed("int-quantized", scheme, acts).read("m", (OUT, IN), tensors)
    assert isinstance(weight, IntWeight)
    assert torch.equal(dequantize(weight), codes * scale)
    assert (weight.activations, weight.input_scale) == ("int8", None)


def test_static_activations_carry_their_scale_and_zero_point() -> None:
    tensors = Tensors(
        {
            "m.weight": torch.zeros(OUT, IN, dtype=torch.int8),
            "m.weight_scale": torch.ones(1),
            "m.input_scale": torch.tensor([0.05]),
            "m.input_zero_point": torch.tensor([-7], dtype=torch.int8),
        }
    )
    acts = {"num_bits": 8, "type": "int", "symmetric": False, "strategy": "tensor", "dynamic": False}
    weight = compressed("int-quantized", {"num_bits": 8, "type": "int"}, acts).read("m", (OUT, IN), tensors)
    assert isinstance(weight, IntWeight)
    assert weight.input_scale == pytest.approx(0.05)
    assert weight.input_zero == -7.0


def test_one_scheme_of_several_is_chosen_by_the_modules_name() -> None:
    matrix = Matrix(8)
    tensors = Tensors({"m.weight_packed": rows_as_words(matrix.codes, 8), "m.weight_scale": matrix.scale})
    groups = {
        "group_0": {"targets": ["Linear"], "weights": {"num_bits": 4, "type": "int"}},
        "group_1": {"targets": ["re:^m$"], "weights": {"num_bits": 8, "type": "int", "group_size": GROUP}},
    }
    config = {"quant_method": "compressed-tensors", "format": "pack-quantized", "config_groups": groups}
    weight = reading(config).read("m", (OUT, IN), tensors)
    assert torch.equal(dequantize(weight), matrix.dense(torch.full_like(matrix.zero, 128)))


@pytest.mark.parametrize("scales", [(), (1,), (OUT,), (OUT, 1)])
def test_float8_scales_per_tensor_and_per_channel_become_one_a_row(scales: tuple[int, ...]) -> None:
    codes, scale = torch.randn(OUT, IN).to(torch.float8_e4m3fn), torch.rand(scales) + 0.5
    tensors = Tensors({"m.weight": codes, "m.weight_scale": scale})
    weight = reading({"quant_method": "fp8", "activation_scheme": "dynamic"}).read("m", (OUT, IN), tensors)
    assert isinstance(weight, FloatWeight)
    assert torch.equal(dequantize(weight), codes.float() * (scale.view(-1, 1) if scale.numel() > 1 else scale))
    assert (weight.block, weight.activations, weight.input_scale) == (None, "fp8", None)


def test_the_inverse_scale_of_tiles_multiplies() -> None:
    codes, scale = torch.randn(OUT, IN).to(torch.float8_e4m3fn), torch.rand(2, 3) + 0.5
    tensors = Tensors({"m.weight": codes, "m.weight_scale_inv": scale})
    config = {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [10, 24]}
    wide = scale.repeat_interleave(10, 0)[:OUT].repeat_interleave(24, 1)[:, :IN]
    assert torch.equal(dequantize(reading(config).read("m", (OUT, IN), tensors)), codes.float() * wide)


def test_damaged_float8_is_refused() -> None:
    codes = torch.randn(OUT, IN).to(torch.float8_e4m3fn)
    static = reading({"quant_method": "fp8", "activation_scheme": "static"})
    tensors = Tensors({"m.weight": codes, "m.weight_scale": torch.ones(())})
    with pytest.raises(WeightsMismatch, match="input_scale"):
        static.read("m", (OUT, IN), tensors)
    codes.view(torch.uint8)[0, 0] = 0xFF
    with pytest.raises(WeightsMismatch, match="NaN"):
        reading({"quant_method": "fp8"}).read("m", (OUT, IN), tensors)
    with pytest.raises(UnsupportedModel, match="float8"):
        reading({"quant_method": "fp8"}).read("m", (OUT, IN), Tensors(tensors | {"m.weight": torch.zeros(OUT, IN)}))


@pytest.mark.parametrize("broken", ["m.qweight", "m.qzeros", "m.scales", "m.g_idx"])
def test_tensors_that_do_not_fit_are_named(broken: str) -> None:
    matrix = Matrix()
    tensors = matrix.gptq(matrix.zero, torch.arange(IN) // GROUP)
    tensors[broken] = tensors[broken][:-1]
    with pytest.raises(WeightsMismatch, match="m"):
        gptq().read("m", (OUT, IN), tensors)


def test_a_stored_format_is_followed_and_no_other_is_taken() -> None:
    stored = reading(AWQ)
    assert quantization_on_load(None, stored) is None
    assert quantization_on_load("awq", stored) is None
    assert quantization_on_load("awq_marlin", stored) is None
    assert quantization_on_load("int8", None) == "int8"
    for asked, checkpoint, said in (
        ("gptq", stored, "stored as awq"),
        ("int8", stored, "stored as awq"),
        ("fp8", None, "esclusa quantize"),
        ("nf4", None, "must be one of"),
        ("nf4", stored, "must be one of"),
    ):
        with pytest.raises(InvalidInput, match=said):
            quantization_on_load(asked, checkpoint)
