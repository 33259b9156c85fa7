"""The index of full blocks by the tokens they hold: a sha256 chain with typed roots. Owns no blocks; the pool does.

The key of block i is H(key of block i-1, its tokens); the key before block 0 is the root H(salt, adapter), each field
tagged and length-prefixed, so that an adapter's name can never equal a salt and two salts never share a block.
A hit compares tokens and parent as well: a hash collision is a miss, not a leak.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from hashlib import sha256


def root_key(salt: bytes | None, adapter: str | None) -> bytes:
    digest = sha256(b"esclusa.prefix.v1")
    for tag, value in ((b"salt", salt), (b"adapter", None if adapter is None else adapter.encode())):
        if value is not None:
            digest.update(tag + b"\x00" + len(value).to_bytes(8, "little") + value)
    return digest.digest()


def block_key(parent: bytes, tokens: Sequence[int]) -> bytes:
    return sha256(parent + array("q", tokens).tobytes()).digest()


def extend_keys(keys: list[bytes], root: bytes, tokens: Sequence[int], block_size: int, num_blocks: int) -> None:
    """Append chain keys in place until `keys` covers the first `num_blocks` full blocks of `tokens`."""
    for index in range(len(keys), num_blocks):
        parent = keys[index - 1] if index else root
        keys.append(block_key(parent, tokens[index * block_size : (index + 1) * block_size]))


class PrefixCache:
    """key -> block for full blocks of verified tokens. The first holder of a key keeps it; duplicates stay private."""

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self._by_key: dict[bytes, tuple[int, bytes, tuple[int, ...]]] = {}
        self._key_of: dict[int, bytes] = {}

    def __len__(self) -> int:
        return len(self._by_key)

    def match(self, keys: Sequence[bytes], root: bytes, tokens: Sequence[int]) -> list[int]:
        """Blocks of the longest cached prefix among `keys`. Pure; the caller must retain them before allocating."""
        blocks: list[int] = []
        parent, size = root, self._block_size
        for index, key in enumerate(keys):
            entry = self._by_key.get(key)
            if entry is None or entry[1] != parent:
                break
            if entry[2] != tuple(tokens[index * size : (index + 1) * size]):
                break
            blocks.append(entry[0])
            parent = key
        return blocks

    def insert(self, block: int, key: bytes, parent: bytes, tokens: Sequence[int]) -> None:
        if key in self._by_key or block in self._key_of:
            return
        self._by_key[key] = (block, parent, tuple(tokens))
        self._key_of[block] = key

    def forget(self, block: int) -> bool:
        """The block's content is about to be lost. True if it was cached."""
        key = self._key_of.pop(block, None)
        if key is None:
            return False
        del self._by_key[key]
        return True

    def clear(self) -> None:
        self._by_key.clear()
        self._key_of.clear()

    def check_integrity(self) -> None:
        """Raise `RuntimeError` unless both maps agree and every entry is a full block."""
        if len(self._by_key) != len(self._key_of):
            raise RuntimeError("the prefix maps differ in size")
        for key, (block, _, tokens) in self._by_key.items():
            if self._key_of.get(block) != key:
                raise RuntimeError(f"block {block} is cached under another key")
            if len(tokens) != self._block_size:
                raise RuntimeError(f"block {block} is cached but not full")
