"""A checkpoint directory written whole or not at all: shards of safetensors, the configuration and the tokenizer."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from safetensors.torch import save_file
from torch import Tensor

from engine.errors import InvalidInput
from engine.text.vocabulary import from_gguf
from engine.weights.loader import Checkpoint

SHARD_BYTES = 2 << 30
COPIED = (".json", ".jinja", ".model", ".txt")
NOT_COPIED = ("config.json", "model.safetensors.index.json", "quantize_config.json", "quant_config.json")
MODEL_TYPES = {
    "LlamaForCausalLM": "llama",
    "MistralForCausalLM": "mistral",
    "MixtralForCausalLM": "mixtral",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
    "Qwen3MoeForCausalLM": "qwen3_moe",
    "Gemma2ForCausalLM": "gemma2",
    "Gemma3ForCausalLM": "gemma3_text",
    "Phi3ForCausalLM": "phi3",
}


class CheckpointWriter:
    """A context manager: what is added lies in a folder beside `out`, which is renamed to it where all went well.

    Raises InvalidInput where `out` exists and is not empty.
    """

    def __init__(self, out: Path) -> None:
        if out.exists() and (not out.is_dir() or any(out.iterdir())):
            raise InvalidInput("out", out.name, "the folder exists and is not empty", hint="name a new one")
        self._out, self._folder = out, out.with_name(f".{out.name}.partial-{os.getpid()}")
        self._shards: list[dict[str, Tensor]] = []
        self._waiting: dict[str, Tensor] = {}
        self._bytes = self.total_bytes = 0
        self._names: dict[str, int] = {}

    def __enter__(self) -> CheckpointWriter:
        self._folder.mkdir(parents=True)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            return
        if self._out.exists():
            self._out.rmdir()
        self._folder.replace(self._out)

    def add(self, tensors: Mapping[str, Tensor]) -> None:
        for name, tensor in tensors.items():
            self._waiting[name] = tensor.contiguous()
            self._bytes += tensor.nbytes
            self.total_bytes += tensor.nbytes
        if self._bytes >= SHARD_BYTES:
            self._flush()

    def finish(self, source: Checkpoint, quantization: Mapping[str, Any], dtype: str) -> None:
        """The last shard, the index, the configuration and what belongs to the tokenizer."""
        self._flush()
        count = max(self._names.values(), default=0)
        if count == 1:
            (self._folder / _temporary(1)).rename(self._folder / "model.safetensors")
        else:
            names = {number: f"model-{number:05}-of-{count:05}.safetensors" for number in range(1, count + 1)}
            for number, name in names.items():
                (self._folder / _temporary(number)).rename(self._folder / name)
            weight_map = {name: names[number] for name, number in self._names.items()}
            self._write("model.safetensors.index.json", {"metadata": {}, "weight_map": weight_map})
        config = {key: value for key, value in source.raw_config.items() if key not in ("torch_dtype", "dtype")}
        config |= {"torch_dtype": dtype, "quantization_config": dict(quantization)}
        if "model_type" not in config and source.config.architecture in MODEL_TYPES:
            config["model_type"] = MODEL_TYPES[source.config.architecture]
        self._write("config.json", config)
        if source.is_gguf:
            self._write_tokenizer(source)
        else:
            for path in sorted(source.path.iterdir()):
                if path.suffix in COPIED and path.name not in NOT_COPIED:
                    shutil.copyfile(path, self._folder / path.name)

    def _flush(self) -> None:
        if not self._waiting:
            return
        number = max(self._names.values(), default=0) + 1
        save_file(self._waiting, self._folder / _temporary(number), metadata={"format": "pt"})
        self._names |= dict.fromkeys(self._waiting, number)
        self._waiting, self._bytes = {}, 0

    def _write_tokenizer(self, source: Checkpoint) -> None:
        vocabulary = from_gguf(source.metadata)
        vocabulary.tokenizer.save(str(self._folder / "tokenizer.json"))
        text_of = vocabulary.tokenizer.id_to_token
        eos, bos = source.raw_config.get("eos_token_id"), vocabulary.bos_token_id
        settings = {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "eos_token": None if eos is None else text_of(eos),
            "bos_token": None if bos is None else text_of(bos),
            "chat_template": vocabulary.chat_template,
        }
        self._write("tokenizer_config.json", {key: value for key, value in settings.items() if value is not None})
        self._write("generation_config.json", {"eos_token_id": sorted(vocabulary.eos_token_ids)})

    def _write(self, name: str, document: Mapping[str, Any]) -> None:
        (self._folder / name).write_text(json.dumps(document, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _temporary(number: int) -> str:
    return f"shard-{number}.safetensors"
