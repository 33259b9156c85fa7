"""Find a model's files, pick the reader, hand out tensors strictly: each wanted one is there, each one there is used.

Owns progress counting and the content hash of the model. Knows neither layers nor devices.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from engine.errors import UnsupportedModel, WeightsMismatch
from engine.model_config import ModelConfig
from engine.weights.formats.format import CodedFormat
from engine.weights.gguf import GgufWeights
from engine.weights.safetensors import SafetensorsWeights
from engine.weights.untrusted import model_files
from kernels.contracts import CodedWeight, QuantizedWeight

BytesProgress = Callable[[int, int], None]
"""Called with (bytes done, bytes in all)."""
_HASH_CHUNK = 1 << 22
_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")


class WeightReader(Protocol):
    """Tensors by Hugging Face name. `read` may block on the disk."""

    config: Mapping[str, Any]

    def names(self) -> Iterable[str]: ...

    def nbytes(self, name: str) -> int: ...

    def read(self, name: str, dtype: torch.dtype) -> Tensor: ...


class Checkpoint:
    """An opened model. `take` marks a tensor as used; `finish` refuses leftovers."""

    def __init__(self, path: Path, reader: WeightReader, files: tuple[Path, ...]) -> None:
        self.path, self.files = path, files
        self.config = ModelConfig.from_hf(reader.config)
        self.raw_config = reader.config
        self.metadata: Mapping[str, Any] = reader.file.metadata if isinstance(reader, GgufWeights) else {}
        self._reader = reader
        self.format: CodedFormat | None = reader.format if isinstance(reader, SafetensorsWeights) else None
        self._coded: set[str] = set()
        self._unused = set(reader.names())
        self._available = frozenset(self._unused)
        self._total = sum(reader.nbytes(name) for name in self._unused)
        self._done = 0
        self.on_progress: BytesProgress | None = None
        self.shapes_only = False
        """Whether `take` gives tensors without numbers, from the directory of the file alone."""

    @property
    def is_gguf(self) -> bool:
        return bool(self.metadata)

    def __contains__(self, name: str) -> bool:
        return name in self._available

    def names(self) -> list[str]:
        """Of all tensors, sorted."""
        return sorted(self._available)

    def read(self, name: str, dtype: torch.dtype) -> Tensor:
        """A tensor in whatever shape it has, for those who rewrite checkpoints. Marks nothing as used."""
        return self._reader.read(name, dtype)

    def take(self, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """The tensor `name` in `dtype`. Raises WeightsMismatch when it is missing or has another shape."""
        self._require(name)
        if self.shapes_only and isinstance(self._reader, SafetensorsWeights):
            tensor = torch.empty(self._reader.shape(name), dtype=dtype, device="meta")
        else:
            tensor = self._reader.read(name, dtype)
        self._accept(name, tuple(tensor.shape), shape)
        return tensor

    def take_weight(self, name: str, shape: tuple[int, int], dtype: torch.dtype) -> Tensor | CodedWeight:
        """The matrix `name` (`module.weight`) as it is stored: quantized where the file has codes, else in `dtype`.

        Raises as `take` does, and UnsupportedModel for a layout that is not read.
        """
        module, reader = name.removesuffix(".weight"), self._reader
        if self.format is None or not isinstance(reader, SafetensorsWeights) or not self.format.holds(module, reader):
            return self.take(name, shape, dtype)
        weight = self.format.read(module, shape, reader)
        self._coded.add(module)
        for suffix in self.format.suffixes:
            self._use(f"{module}.{suffix}")
        return weight

    def take_codes(self, name: str, shape: tuple[int, int]) -> QuantizedWeight:
        """The quantized blocks of the matrix `name`, unchanged. Raises UnsupportedModel when the file has none."""
        self._require(name)
        if not isinstance(self._reader, GgufWeights):
            raise UnsupportedModel(f"{self.path.name} holds no GGUF codes", hint="drop `--quantization gguf`")
        weight = self._reader.read_codes(name)
        self._accept(name, (weight.out_features, weight.in_features), shape)
        return weight

    def _require(self, name: str) -> None:
        if name not in self._available:
            raise WeightsMismatch(f"the checkpoint has no tensor {name}", hint="is it the architecture it says it is?")

    def _accept(self, name: str, found: tuple[int, ...], expected: tuple[int, ...]) -> None:
        if found != expected:
            raise WeightsMismatch(f"tensor {name} has shape {str(found)[:80]}, expected {expected}")
        self._use(name)

    def _use(self, name: str) -> None:
        if name in self._unused:
            self._unused.discard(name)
            self._done += self._reader.nbytes(name)
            if self.on_progress is not None:
                self.on_progress(self._done, self._total)

    def ignore(self, *suffixes: str) -> None:
        """Declare tensors that older exporters store and nobody needs (recomputed tables, tied copies)."""
        self._unused = {name for name in self._unused if not name.endswith(suffixes)}

    def finish(self) -> None:
        """Raises WeightsMismatch when tensors were left unused: the model would silently be another one."""
        self._unused = {name for name in self._unused if not self._means_nothing(name)}
        if self._unused:
            some = ", ".join(sorted(self._unused)[:5])
            raise WeightsMismatch(f"{len(self._unused)} tensors of the checkpoint are not used, among them {some}")

    def _means_nothing(self, name: str) -> bool:
        """What quantizers add: a bias of zeros to a matrix that has none, and scales of a cache that is not float8."""
        if self.format is None:
            return False
        if name.endswith((".k_scale", ".v_scale", ".q_scale", ".output_scale")):
            return True
        module, _, part = name.rpartition(".")
        return part == "bias" and module in self._coded and not self._reader.read(name, torch.float32).any()

    def sha256(self) -> str:
        """The file's hash; for a directory, the hash of the sorted `name:hash` lines of its weight files and config."""
        if len(self.files) == 1 and self.path.is_file():
            return _file_sha256(self.path)
        config = self.path / "config.json"
        lines = [f"{file.name}:{_file_sha256(file)}\n" for file in (config, *self.files)]
        return hashlib.sha256("".join(sorted(lines)).encode()).hexdigest()


def open_checkpoint(path: str | Path) -> Checkpoint:
    """A directory with config.json and safetensors, or one GGUF file.

    Raises WeightsMismatch when files are missing or damaged, UnsupportedModel for a format that we do not read.
    """
    asked, path = str(path), Path(path)
    if path.is_dir():
        with model_files(path.name):
            directory = SafetensorsWeights(path)
            return Checkpoint(path, directory, directory.files)
    if not path.is_file():
        raise WeightsMismatch(
            f"there is no model at {asked if _HUB_ID.fullmatch(asked) else path.name!r}",
            hint="give a model directory or a .gguf file; nothing is fetched from a hub",
        )
    if path.suffix != ".gguf":
        raise UnsupportedModel(f"{path.name} is neither a directory nor a .gguf file")
    with model_files(path.name):
        return Checkpoint(path, GgufWeights(path), (path,))


def _file_sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_HASH_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()
