"""Offsets of tokens in a text, counted in characters while the text grows. Pure."""

from __future__ import annotations

import codecs


class TextOffsets:
    """One text, fed the bytes of its tokens in order. What is not UTF-8 counts as the U+FFFD that the text shows."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._length = 0

    def take(self, raw: bytes) -> int:
        """The offset of the character that holds the token's first byte, also where it began in an earlier token."""
        offset, pending = self._length, self._decoder.getstate()[0]
        if pending and raw:
            # Two characters where the byte does not go on with what is pending: that one is lost, the token's is next.
            offset += len((pending + raw[:1]).decode("utf-8", "replace")) - 1
        self._length += len(self._decoder.decode(raw))
        return offset
