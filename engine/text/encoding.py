"""Text to token ids: exactly what the tokenizer makes of the whole text, without holding the interpreter for long.

A text that cannot fit is refused for the work of one that fits: by its length where a token's bytes are bounded, and
otherwise as soon as the pieces read so far have too many tokens. Knows no control tokens and no templates.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from tokenizers.models import BPE

from engine.errors import TextTooLong
from engine.text.vocabulary import BYTE_SIGNS, WORDS

PIECE = 32_768
"""Characters encoded at a time. A boundary is then looked for, so a piece may be longer."""
_LETTERS = r"A-Za-zÀ-ÖØ-öø-ɏЀ-ҁ\u3041-\u3096\u30a1-\u30fa\u4e00-\u9fa5\uac00-\ud7a3"
_BOUNDARY = re.compile(rf"(?<=[{_LETTERS}])(?=[\s,.;:!?，。、；：！？])")
"""Between a letter and a sign that is none. The words of every known pre-tokenizer end there whatever follows, and no
normal form joins the two; the letters are those that all versions of Unicode agree on."""
_NFC = {"type": "NFC"}
_NFC_SHRINKS = 3
"""At most so many bytes of a text become one by Unicode's canonical composition."""


_BYTE_TOKENS = frozenset(f"<0x{byte:02X}>" for byte in range(256))
_BYTES = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False}
_GPT2 = {**_BYTES, "use_regex": True}
_DIGITS = {"type": "Digits", "individual_digits": True}
PRE_TOKENIZERS: tuple[Any, ...] = (
    _GPT2,
    {"type": "Sequence", "pretokenizers": [_DIGITS, _GPT2]},
    *(
        {
            "type": "Sequence",
            "pretokenizers": [
                {"type": "Split", "pattern": {"Regex": words}, "behavior": "Isolated", "invert": False},
                _BYTES,
            ],
        }
        for words in WORDS.values()
    ),
)
"""Those whose words end at a boundary: GPT-2's, SmolLM's, and those that `vocabulary` knows by name."""


class TextEncoder:
    """Safe to call from several threads; other Python threads run meanwhile (`encode_batch_fast` releases the GIL)."""

    def __init__(self, tokenizer: Any, *, piece: int = PIECE) -> None:
        self._tokenizer = tokenizer
        self._piece = piece

    def encode(self, text: str, *, special: bool = False, most: int | None = None) -> list[int]:
        """`special`: with the tokens that the model wants around a text. Raises `TextTooLong` where there are more than
        `most` tokens."""
        if most is not None and (least := self.least_tokens(text)) > most:
            raise TextTooLong(least, most)
        if len(text) <= self._piece or self._around is None:
            ids = self._ids(text, special=special)
            return _checked(ids, most)
        before, after = self._around if special else ([], [])
        ids = list(before)
        for piece in self._pieces(text):
            ids += self._ids(piece, special=False)
            _checked(ids, most)
        return _checked(ids + after, most)

    def least_tokens(self, text: str) -> int:
        """A number of tokens that `text` has in any case; 0 where nothing is known of the tokenizer."""
        bound = self._bound
        if bound is None:
            return 0
        raw = text.encode("utf-8", "replace")
        size = len(raw.translate(None, bound.silent)) if bound.silent else len(raw)
        return -(-size // (bound.longest if text.isascii() else bound.longest * bound.shrinks))

    def _ids(self, text: str, *, special: bool) -> list[int]:
        (encoding,) = self._tokenizer.encode_batch_fast([text], add_special_tokens=special)
        ids: list[int] = encoding.ids
        return ids

    def _pieces(self, text: str) -> Iterator[str]:
        start = 0
        while len(text) - start > self._piece:
            found = _BOUNDARY.search(text, start + self._piece)
            if found is None:
                break
            yield text[start : found.start()]
            start = found.start()
        yield text[start:]

    @cached_property
    def _around(self) -> tuple[list[int], list[int]] | None:
        """The tokens before and after a whole text; None where a text must not be cut."""
        if not self._ends_words_at_boundaries():
            return None
        bare, whole = self._ids("a", special=False), self._ids("a", special=True)
        for start in range(len(whole) - len(bare) + 1):
            if whole[start : start + len(bare)] == bare:
                return whole[:start], whole[start + len(bare) :]
        return None

    def _ends_words_at_boundaries(self) -> bool:
        if not isinstance(self._tokenizer.model, BPE) or _state(self._tokenizer.pre_tokenizer) not in PRE_TOKENIZERS:
            return False
        return _state(self._tokenizer.normalizer) in (None, _NFC) and all(
            not (token.lstrip or token.rstrip or token.single_word) and _BOUNDARY.search(token.content) is None
            for token in self._tokenizer.get_added_tokens_decoder().values()
        )

    @cached_property
    def _bound(self) -> _Bound | None:
        """None where some token may stand for any number of bytes."""
        model, normalizer = self._tokenizer.model, _state(self._tokenizer.normalizer)
        added = self._tokenizer.get_added_tokens_decoder().values()
        if not isinstance(model, BPE) or any(token.lstrip or token.rstrip for token in added):
            return None
        vocabulary: dict[str, int] = self._tokenizer.get_vocab(with_added_tokens=False)
        sizes = [len(token.content.encode()) for token in added]
        if _splits_bytes(_state(self._tokenizer.pre_tokenizer)) and normalizer in (None, _NFC):
            silent = bytes(byte for byte, sign in enumerate(BYTE_SIGNS) if sign not in vocabulary)
            if silent and (model.unk_token is not None or normalizer is not None):
                return None  # composition could make signs without a token of signs that have some
            sizes += map(len, vocabulary)  # each character of a byte-level token is one byte
            return _Bound(max(sizes), silent, 1 if normalizer is None else _NFC_SHRINKS)
        if model.byte_fallback and vocabulary.keys() >= _BYTE_TOKENS and _only_marks_spaces(normalizer):
            sizes += [len(token.encode("utf-8", "replace")) for token in vocabulary]
            return _Bound(max(sizes))
        return None


@dataclass(frozen=True, slots=True)
class _Bound:
    """Bytes of text that one token stands for at most, and the bytes for which there is none at all."""

    longest: int
    silent: bytes = b""
    shrinks: int = 1
    """At most so many bytes of a text that is not ASCII become one before it is split."""


def _splits_bytes(state: Any) -> bool:
    """A byte-level pre-tokenizer under which nothing of a text is left out."""
    if state is None:
        return False
    steps = state["pretokenizers"] if state["type"] == "Sequence" else [state]
    return any(step["type"] == "ByteLevel" for step in steps) and all(
        step["type"] in ("ByteLevel", "Digits") or (step["type"] == "Split" and step["behavior"] != "Removed")
        for step in steps
    )


def _only_marks_spaces(normalizer: Any) -> bool:
    """SentencePiece's: a space becomes a longer sign, and nothing is taken out."""
    steps = normalizer["normalizers"] if normalizer and normalizer["type"] == "Sequence" else [normalizer]
    return all(
        step is None or step["type"] == "Prepend" or (step["type"], step.get("content")) == ("Replace", "▁")
        for step in steps
    )


def _state(component: Any) -> Any:
    """A part of a tokenizer as data, without what does not change the tokens."""
    return None if component is None else _plain(json.loads(component.__getstate__()))


def _plain(state: Any) -> Any:
    if isinstance(state, list):
        return [_plain(item) for item in state]
    if isinstance(state, dict):
        return {name: _plain(value) for name, value in state.items() if name != "trim_offsets"}
    return state


def _checked(ids: list[int], most: int | None) -> list[int]:
    if most is not None and len(ids) > most:
        raise TextTooLong(len(ids), most)
    return ids
