"""Compares the seeded fixtures of all quantized layouts with independent readers, bit for bit.

    python -m benchmarks.quantized_readers DIR [--write]

Every reader that is installed takes part: compressed-tensors (and its converter of AWQ), GPTQModel, transformers. Each
dequantizes the files that `python -m tests.fixtures.quantized DIR` makes, with code that is not ours. `--write` adds
the hashes of what it gave to `tests/fixtures/quantized_readers.json`, which `make test` compares our readers with. The
readers want other versions of torch than this project has: install them in environments of their own.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import json
import os
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

os.environ.setdefault("USE_HUB_KERNELS", "0")
os.environ.setdefault("GPTQ_TORCH_TRITON_DEQUANT", "0")

import torch
from safetensors.torch import load_file
from torch import Tensor

from tests.fixtures.quantized import GOLDEN, LAYOUTS, dense_sha256, main

Matrices = dict[str, Tensor]


def compressed_tensors(folder: Path, config: Mapping[str, Any]) -> Matrices | None:
    from compressed_tensors.compressors import BaseCompressor
    from compressed_tensors.entrypoints.convert.converters.autoawq import AutoAWQConverter
    from compressed_tensors.quantization import QuantizationScheme

    stored = load_file(folder / "model.safetensors")
    if config["quant_method"] == "awq":
        stored = AutoAWQConverter.from_autoawq_config(dict(config)).process(dict(stored))
        group = config["group_size"]
        weights = {"num_bits": 4, "type": "int", "symmetric": False, "group_size": group, "strategy": "group"}
        scheme, layout = QuantizationScheme(targets=["Linear"], weights=weights), "pack-quantized"
    elif config["quant_method"] == "compressed-tensors":
        if config["config_groups"]["group_0"]["weights"]["actorder"] == "group":
            return None  # removed from this library; files of its earlier versions have it
        scheme, layout = QuantizationScheme(**config["config_groups"]["group_0"]), config["format"]
    else:
        return None
    compressor = BaseCompressor.get_value_from_registry(layout)
    dense = {}
    for module in modules_of(stored):
        own = {key[len(module) + 1 :]: tensor for key, tensor in stored.items() if key.startswith(f"{module}.")}
        dense[module] = compressor.decompress(own, scheme)["weight"]
    return dense


def gptqmodel(folder: Path, config: Mapping[str, Any]) -> Matrices | None:
    if config["quant_method"] != "gptq":
        return None
    from gptqmodel.nn_modules.qlinear.torch import TorchLinear
    from gptqmodel.utils.model import convert_gptq_v1_to_v2_format_module

    stored, dense = load_file(folder / "model.safetensors"), {}
    for module in modules_of(stored):
        inputs, outputs = len(stored[f"{module}.g_idx"]), stored[f"{module}.scales"].shape[1]
        layer = TorchLinear(
            bits=config["bits"],
            group_size=config["group_size"],
            sym=config["sym"],
            desc_act=config["desc_act"],
            in_features=inputs,
            out_features=outputs,
            bias=False,
        )
        for part in ("qweight", "qzeros", "scales", "g_idx"):
            getattr(layer, part).data.copy_(stored[f"{module}.{part}"])
        if config["checkpoint_format"] == "gptq":
            convert_gptq_v1_to_v2_format_module(layer, config["bits"], torch.int32)
        dense[module] = layer.dequantize_weight().T
    return dense


def transformers(folder: Path, config: Mapping[str, Any]) -> Matrices | None:
    if config["quant_method"] != "fp8" or "weight_block_size" not in config:
        return None
    from transformers import AutoModelForCausalLM, FineGrainedFP8Config

    how = FineGrainedFP8Config(dequantize=True)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16, quantization_config=how)
    parameters = model.named_parameters()
    return {key.removesuffix(".weight"): tensor.data for key, tensor in parameters if key.endswith("_proj.weight")}


KNOWN_DIFFERENCES = {("gptq-v1-asym", "gptqmodel"): "AutoGPTQ's wrapped zero points of 0, which GPTQModel borrows for"}
"""(layout, reader) -> the reason why it reads other numbers than the writer of the format meant."""
NEEDS = {"transformers": "accelerate"}
"""What a reader cannot work without, where it does not come with it."""
READERS: Mapping[str, Callable[[Path, Mapping[str, Any]], Matrices | None]] = {
    "compressed-tensors": compressed_tensors,
    "gptqmodel": gptqmodel,
    "transformers": transformers,
}


def modules_of(tensors: Mapping[str, Tensor]) -> list[str]:
    return sorted({name.rpartition(".")[0] for name in tensors if "_proj." in name})


def compared(directory: Path) -> Iterator[tuple[str, str, int, int, str]]:
    """(layout, reader and version, matrices bitwise equal, matrices, hash of what it gave)."""
    for reader, read in READERS.items():
        parts = (reader.replace("-", "_"), NEEDS.get(reader, "json"))
        if any(importlib.util.find_spec(part) is None for part in parts):
            continue
        for name, layout in LAYOUTS.items():
            folder = directory / name
            config = json.loads((folder / "config.json").read_text(encoding="utf-8"))["quantization_config"]
            given = read(folder, config)
            if given is None:
                continue
            twin = load_file(directory / f"{name}-dense" / "model.safetensors")
            dense = {module: matrix.to(layout.dtype) for module, matrix in given.items()}
            equal = sum(torch.equal(twin[f"{module}.weight"], matrix) for module, matrix in dense.items())
            yield name, f"{reader} {importlib.metadata.version(reader)}", equal, len(dense), dense_sha256(dense)


def run() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--write", action="store_true", help="add the hashes to the golden file")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    main(given.directory)
    golden: dict[str, dict[str, str]] = json.loads(GOLDEN.read_text(encoding="utf-8")) if GOLDEN.exists() else {}
    failed = False
    with torch.inference_mode():
        for name, reader, equal, count, digest in compared(given.directory):
            known = KNOWN_DIFFERENCES.get((name, reader.split()[0]))
            print(
                f"{name:22}{reader:28}{equal:>4} of {count} bitwise equal to the twin{f' ({known})' if known else ''}"
            )
            if known:
                continue
            failed |= equal != count or count == 0
            golden.setdefault(name, {})[reader] = digest
    if given.write:
        GOLDEN.write_text(json.dumps(golden, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    return int(failed)


if __name__ == "__main__":
    sys.exit(run())
