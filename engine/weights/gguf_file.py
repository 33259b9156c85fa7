"""The GGUF container: metadata and the tensor directory of one file, mapped into memory.

Owns the byte layout of GGUF versions 2 and 3 (little endian) and nothing else: no names, no dequantization, no torch.
A reader of our own because metadata of a 150k-token vocabulary must be read in tenths of a second, not in seconds.
Source: the GGUF specification (ggml/docs/gguf.md).
"""

from __future__ import annotations

import mmap
import struct
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from engine.errors import UnsupportedModel, WeightsMismatch
from kernels.gguf_formats import BY_ID, FORMATS, UNREAD, GgufFormat

_MAGIC = 0x46554747
_DEFAULT_ALIGNMENT = 32
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
_MOST_NESTED = 4


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """`shape` is row major (outermost first, the reverse of the file); `offset` counts from the start of the file."""

    name: str
    shape: tuple[int, ...]
    type: GgufFormat
    offset: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class GgufFile:
    path: Path
    metadata: dict[str, Any]
    tensors: dict[str, TensorEntry]


class _Cursor:
    def __init__(self, data: mmap.mmap) -> None:
        self._data, self.at = data, 0

    def scalar(self, code: str) -> Any:
        value = struct.unpack_from("<" + code, self._data, self.at)[0]
        self.at += struct.calcsize("<" + code)
        return value

    def string(self) -> str:
        length = self.scalar("Q")
        start, self.at = self.at, self.at + length
        # Vocabularies may hold bytes that are no UTF-8; they must survive the round trip.
        return self._data[start : self.at].decode("utf-8", "surrogateescape")

    def value(self, kind: int) -> Any:
        if kind == _STRING:
            return self.string()
        if kind == _ARRAY:
            return self._array(_MOST_NESTED)
        return self.scalar(_SCALARS[kind])

    def _array(self, levels: int) -> list[Any]:
        kind, length = self.scalar("I"), self.scalar("Q")
        if length > len(self._data) - self.at:
            raise IndexError("an array is longer than the file")
        if kind == _STRING:
            return self._strings(length)
        if kind == _ARRAY:
            if levels == 0:
                raise IndexError("arrays are nested too deeply")
            return [self._array(levels - 1) for _ in range(length)]
        packed = struct.Struct(f"<{length}{_SCALARS[kind]}")
        values = list(packed.unpack_from(self._data, self.at))
        self.at += packed.size
        return values

    def _strings(self, length: int) -> list[str]:
        data, at, read = self._data, self.at, struct.Struct("<Q").unpack_from
        strings = []
        for _ in range(length):
            end = at + 8 + read(data, at)[0]
            strings.append(data[at + 8 : end].decode("utf-8", "surrogateescape"))
            at = end
        self.at = at
        return strings


def read_gguf(path: Path) -> GgufFile:
    """Parse metadata and the tensor directory. Raises WeightsMismatch for a damaged file, UnsupportedModel for an
    encoding or version that we do not read."""
    if path.stat().st_size == 0:
        raise WeightsMismatch(f"{path.name} is empty", hint="fetch the file again")
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        try:
            return _parse(path, _Cursor(data), len(data))
        except (struct.error, KeyError, IndexError, OverflowError, ValueError, TypeError) as error:
            raise WeightsMismatch(f"{path.name} is damaged or cut short", hint="fetch the file again") from error


def _parse(path: Path, cursor: _Cursor, size: int) -> GgufFile:
    if cursor.scalar("I") != _MAGIC:
        raise WeightsMismatch(f"{path.name} is not a GGUF file", hint="give a .gguf file or a model directory")
    version = cursor.scalar("I")
    if version not in (2, 3):
        raise UnsupportedModel(f"GGUF version {version} in {path.name}; versions 2 and 3 are read")
    num_tensors, num_keys = cursor.scalar("Q"), cursor.scalar("Q")
    metadata: dict[str, Any] = {}
    for _ in range(num_keys):
        key = cursor.string()
        metadata[key] = cursor.value(cursor.scalar("I"))
    entries = [_read_entry(cursor) for _ in range(num_tensors)]
    alignment = metadata.get("general.alignment", _DEFAULT_ALIGNMENT)
    if not isinstance(alignment, int) or not 0 < alignment <= 1 << 20:
        raise WeightsMismatch(f"{path.name} is damaged: its alignment cannot be meant", hint="fetch the file again")
    base = -(-cursor.at // alignment) * alignment
    tensors = {}
    for name, shape, kind, offset in entries:
        form = BY_ID.get(kind)
        if form is None:
            raise UnsupportedModel(
                f"tensor {name} has GGUF encoding {UNREAD.get(kind, kind)}",
                hint=f"encodings read: {', '.join(FORMATS)}",
            )
        nbytes = prod(shape) // form.elements * form.nbytes
        if base + offset + nbytes > size:
            raise WeightsMismatch(f"{path.name} is cut short at tensor {name}", hint="fetch the file again")
        tensors[name] = TensorEntry(name, shape, form, base + offset, nbytes)
    return GgufFile(path, metadata, tensors)


def _read_entry(cursor: _Cursor) -> tuple[str, tuple[int, ...], int, int]:
    name = cursor.string()
    rank = cursor.scalar("I")
    shape = tuple(reversed([cursor.scalar("Q") for _ in range(rank)]))
    kind, offset = cursor.scalar("I"), cursor.scalar("Q")
    return name, shape, kind, offset
