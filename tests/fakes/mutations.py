"""Damages bytes the way disks, transfers and attackers do; the same seed gives the same damage."""

from __future__ import annotations

import random

EDGES = (0, 1, 0x7F, 0x80, 0xFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 0x7FFFFFFFFFFFFFFF, 0xFFFFFFFFFFFFFFFF)


def mutate(data: bytes, seed: int, *, within: int | None = None) -> bytes:
    """One to four damages in the first `within` bytes (default: anywhere)."""
    draw, changed = random.Random(seed), bytearray(data)
    for _ in range(draw.randint(1, 4)):
        size = min(len(changed), within or len(changed))
        if size < 8:
            break
        at = draw.randrange(size)
        kind = draw.randrange(8)
        if kind == 0:
            changed[at] ^= 1 << draw.randrange(8)
        elif kind == 1:
            changed[at] = draw.randrange(256)
        elif kind == 2:
            width = draw.choice((1, 2, 4, 8))
            changed[at : at + width] = (draw.choice(EDGES) & ((1 << 8 * width) - 1)).to_bytes(width, "little")
        elif kind == 3:
            del changed[at : at + draw.choice((1, 4, 64))]
        elif kind == 4:
            changed[at:at] = draw.randbytes(draw.choice((1, 4, 64)))
        elif kind == 5:
            other = draw.randrange(size)
            changed[at : at + 32] = changed[other : other + 32]
        elif kind == 6:
            changed[at : at + 64] = bytes(min(64, len(changed) - at))
        elif draw.random() < 0.3:
            del changed[at:]
    return bytes(changed)
