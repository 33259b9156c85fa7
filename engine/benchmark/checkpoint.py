"""The same weights in each peer's own format, made once beside the cache: a bf16 directory and a bf16 GGUF."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from engine.benchmark.child import BenchmarkError

MODEL_TYPES = {"LlamaForCausalLM": "llama", "Qwen2ForCausalLM": "qwen2"}


def hugging_face_directory(model: Path, scratch: Path) -> Path:
    """A directory that transformers and vLLM load: our own reading of `model`, dequantized to bf16.

    Raises `EngineError` when the file cannot be read, `KeyError` for a family the peers are not measured on.
    """
    if model.is_dir():
        return model
    target = scratch / f"{model.stem}-bf16"
    if (target / "config.json").is_file():
        return target
    import torch
    from safetensors.torch import save_file

    from engine.weights.gguf import GgufWeights

    weights = GgufWeights(model)
    building = scratch / f".{target.name}.part"
    building.mkdir(parents=True, exist_ok=True)
    tensors = {name: weights.read(name, torch.bfloat16).contiguous() for name in weights.names()}
    save_file(tensors, building / "model.safetensors", metadata={"format": "pt"})
    config = dict(weights.config)
    config["model_type"] = MODEL_TYPES[config["architectures"][0]]
    config["torch_dtype"] = "bfloat16"
    (building / "config.json").write_text(json.dumps(config, indent=2))
    building.rename(target)
    return target


def llama_gguf(model: Path, scratch: Path, quantize: Path, kind: str) -> Path:
    """`model` converted to `kind` (BF16, Q8_0, Q4_0) by llama.cpp's own tool. Raises `BenchmarkError`."""
    target = scratch / f"{model.stem}-{kind.lower()}.gguf"
    if not target.is_file():
        scratch.mkdir(parents=True, exist_ok=True)
        part = target.with_suffix(".part")
        command = [str(quantize), "--allow-requantize", str(model), str(part), kind]
        try:
            subprocess.run(command, check=True, capture_output=True, text=True)
        except OSError as error:
            raise BenchmarkError(f"{quantize.name} could not be run: {error}") from error
        except subprocess.CalledProcessError as error:
            raise BenchmarkError(f"{quantize.name} made no {kind} file:\n{error.stderr[-1000:]}") from error
        part.rename(target)
    return target
