"""Token bytes to text, one choice at a time. Knows no scheduler, no logits.

Bytes of an unfinished character are kept until it is complete; bytes that can never become a character turn into U+FFFD
just as in a decode of the whole. Text that may become a stop string is held back, and no more than that. The deltas
concatenated equal the full decode, cut before the stop string that matched.
"""

from __future__ import annotations

import codecs
from collections.abc import Callable

from engine.text.stop_strings import StopMatcher

_new_decoder = codecs.getincrementaldecoder("utf-8")


class Detokenizer:
    """`token_bytes` gives the bytes of one token. `matcher` None: no stop strings, nothing is ever held back."""

    __slots__ = (
        "_count",
        "_decoder",
        "_held",
        "_hidden",
        "_include_stop",
        "_matcher",
        "_min_tokens",
        "_state",
        "_token_bytes",
        "_whole",
        "stopped_by",
    )

    def __init__(
        self,
        token_bytes: Callable[[int], bytes],
        *,
        matcher: StopMatcher | None = None,
        include_stop: bool = False,
        min_tokens: int = 0,
        hidden: frozenset[int] = frozenset(),
    ) -> None:
        self._token_bytes = token_bytes
        self._decoder = _new_decoder("replace")
        self._whole = True
        """The text so far ends with a whole character, so that the next bytes may be decoded on their own."""
        self._matcher = matcher
        self._include_stop = include_stop
        self._min_tokens = min_tokens
        self._hidden = hidden
        self._state = 0
        self._held = ""
        self._count = 0
        self.stopped_by: str | None = None

    def push(self, token_id: int) -> str:
        """Text that is now certain. Sets `stopped_by` when a stop string ended the text; later pushes give nothing."""
        self._count += 1
        if token_id in self._hidden:
            return ""
        data = self._token_bytes(token_id)
        if self._whole:
            try:
                text = data.decode()
            except UnicodeDecodeError:
                pass
            else:
                return text if self._matcher is None else self._accept(text)
        text = self._decoder.decode(data)
        self._whole = not self._decoder.getstate()[0]
        return self._accept(text)

    def flush(self) -> str:
        """The rest: an incomplete character decodes to U+FFFD, held text is released. Call once, at the end."""
        text = self._accept(self._decoder.decode(b"", final=True))
        if self.stopped_by is None:
            text, self._held = text + self._held, ""
        return text

    def _accept(self, text: str) -> str:
        if self._matcher is None or self.stopped_by is not None or not text:
            return "" if self.stopped_by is not None else text
        rest, buffer = text, self._held
        while rest:
            self._state, used, stop = self._matcher.feed(self._state, rest)
            buffer += rest[:used]
            rest = rest[used:]
            if stop is None:
                break
            if self._count >= self._min_tokens:
                self.stopped_by, self._held = stop, ""
                return buffer if self._include_stop else buffer[: -len(stop)]
        keep = min(self._matcher.depth[self._state], len(buffer))
        cut = len(buffer) - keep
        self._held = buffer[cut:]
        return buffer[:cut]
