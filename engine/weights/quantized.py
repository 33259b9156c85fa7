"""Detects checkpoints that are stored quantized from their configuration, before any tensor is read.

Owns the names that people search for (AWQ, GPTQ, FP8, ...). Reading the wrong format would end in a message about a
missing tensor, or in weights without their scales.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from engine.errors import InvalidInput, UnsupportedModel
from engine.weights.formats.awq import AwqFormat
from engine.weights.formats.compressed_tensors import CompressedTensorsFormat
from engine.weights.formats.format import CodedFormat
from engine.weights.formats.fp8 import Fp8Format
from engine.weights.formats.gptq import GptqFormat
from kernels.contracts import QUANTIZATIONS

FORMATS: Mapping[str, Callable[[Mapping[str, Any]], CodedFormat]] = {
    "awq": AwqFormat.from_config,
    "gptq": GptqFormat.from_config,
    "compressed-tensors": CompressedTensorsFormat.from_config,
    "fp8": Fp8Format.from_config,
    "fbgemm_fp8": Fp8Format.from_config,
}
"""`quant_method` -> its reader."""
SAME_AS = {"awq_marlin": "awq", "gptq_marlin": "gptq", "fbgemm_fp8": "fp8"}
"""Names that vLLM has for other kernels over the same checkpoints."""
NAMES = {
    "awq": "AWQ",
    "gptq": "GPTQ",
    "compressed-tensors": "compressed-tensors",
    "fp8": "FP8",
    "fbgemm_fp8": "FP8 (FBGEMM)",
    "bitsandbytes": "bitsandbytes",
    "mxfp4": "MXFP4",
    "modelopt": "ModelOpt",
    "quark": "Quark",
    "torchao": "torchao",
    "hqq": "HQQ",
    "eetq": "EETQ",
    "aqlm": "AQLM",
    "quanto": "Quanto",
    "auto-round": "AutoRound",
    "intel/auto-round": "AutoRound",
}
PLAIN_DTYPES = frozenset({"F64", "F32", "F16", "BF16"})
"""The safetensors dtypes whose values are weights as they are."""
HINT = (
    "take the checkpoint in AWQ, GPTQ, compressed-tensors, FP8 or GGUF, or the unquantized one "
    "(with `quantization: int8` if memory is short)"
)


def format_of(config: Mapping[str, Any]) -> CodedFormat | None:
    """The format of a quantized checkpoint; None for a plain one. Raises UnsupportedModel naming what is not read."""
    given = config.get("quantization_config") or config.get("compression_config")
    if not given:
        return None
    details = given if isinstance(given, Mapping) else {}
    method = str(details.get("quant_method") or details.get("format") or "unknown")[:64]
    read = FORMATS.get(method.lower())
    if read is not None:
        return read(details)
    bits = details.get("bits") or details.get("w_bit") or details.get("weight_bits")
    group = details.get("group_size") or details.get("q_group_size")
    parts = [f"{bits} bit" if isinstance(bits, int) else "", f"groups of {group}" if isinstance(group, int) else ""]
    shown = ", ".join(part for part in parts if part)
    raise UnsupportedModel(
        f"the checkpoint is quantized with {NAMES.get(method.lower(), method)}{f' ({shown})' if shown else ''}, "
        "which this engine does not read",
        hint=HINT,
    )


def quantization_on_load(asked: str | None, stored: CodedFormat | None) -> str | None:
    """What `pack_linear` is told for matrices that are stored plain. A stored format is followed, asked for or not.

    Raises InvalidInput for an unknown name, and for one that is not that of the checkpoint.
    """
    if asked is None:
        return None
    method = SAME_AS.get(asked, asked)
    if stored is not None and method == stored.name:
        return None
    known = ", ".join(dict.fromkeys([*(str(name) for name in QUANTIZATIONS if name), *FORMATS, *SAME_AS]))
    if method not in QUANTIZATIONS and method not in FORMATS:
        raise InvalidInput("quantization", asked, f"must be one of {known}, or unset")
    if stored is not None:
        raise InvalidInput(
            "quantization", asked, f"the checkpoint is stored as {stored.name}: leave it unset to follow it"
        )
    if method in FORMATS:
        raise InvalidInput(
            "quantization",
            asked,
            f"the checkpoint is not stored as {method}: use int8 or int4, or write one with `esclusa quantize`",
        )
    return method


def refuse_codes(name: str, dtype: str) -> None:
    """Raises UnsupportedModel for a weight stored in a dtype whose values need scales to be weights (FP8, int8)."""
    if dtype not in PLAIN_DTYPES:
        raise UnsupportedModel(f"the tensor {name} is stored as {dtype}, which is no plain weight", hint=HINT)
