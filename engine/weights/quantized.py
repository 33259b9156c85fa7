"""Detects checkpoints that are stored quantized from their configuration, before any tensor is read.

Owns the names that people search for (AWQ, GPTQ, FP8, ...). Reading the wrong format would end in a message about a
missing tensor, or in weights without their scales.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engine.errors import UnsupportedModel

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
}
PLAIN_DTYPES = frozenset({"F64", "F32", "F16", "BF16"})
"""The safetensors dtypes whose values are weights as they are."""
HINT = "use the unquantized checkpoint (with `quantization: int8` if memory is short) or a GGUF file of the model"


def refuse_quantized(config: Mapping[str, Any]) -> None:
    """Raises UnsupportedModel that names the format of a quantized checkpoint."""
    given = config.get("quantization_config") or config.get("compression_config")
    if not given:
        return
    details = given if isinstance(given, Mapping) else {}
    method = str(details.get("quant_method") or details.get("format") or "unknown")[:64]
    bits = details.get("bits") or details.get("w_bit") or details.get("weight_bits")
    group = details.get("group_size") or details.get("q_group_size")
    parts = [f"{bits} bit" if isinstance(bits, int) else "", f"groups of {group}" if isinstance(group, int) else ""]
    shown = ", ".join(part for part in parts if part)
    raise UnsupportedModel(
        f"the checkpoint is quantized with {NAMES.get(method.lower(), method)}{f' ({shown})' if shown else ''}, "
        "which this engine does not read",
        hint=HINT,
    )


def refuse_codes(name: str, dtype: str) -> None:
    """Raises UnsupportedModel for a weight stored in a dtype whose values need scales to be weights (FP8, int8)."""
    if dtype not in PLAIN_DTYPES:
        raise UnsupportedModel(f"the tensor {name} is stored as {dtype}, which is no plain weight", hint=HINT)
