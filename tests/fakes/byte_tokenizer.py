"""A tokenizer whose tokens are bytes: 0..255, then end of sequence and one special token."""

from __future__ import annotations

from typing import Any

EOS = 256
SPECIAL = 257


class ByteTokenizer:
    vocab_size = 258
    eos_token_ids = frozenset({EOS})
    special_token_ids = frozenset({EOS, SPECIAL})

    def __init__(self) -> None:
        self._llguidance: Any = None

    def token_bytes(self, token_id: int) -> bytes:
        return bytes([token_id]) if token_id < 256 else b""

    def encode(self, text: str) -> list[int]:
        return list(text.encode())

    def llguidance(self) -> Any:
        if self._llguidance is None:
            from llguidance import LLTokenizer, TokenizerWrapper

            self._llguidance = LLTokenizer(TokenizerWrapper(_Vocabulary(self)))
        return self._llguidance


class _Vocabulary:
    eos_token_id = EOS
    bos_token_id = None

    def __init__(self, tokenizer: ByteTokenizer) -> None:
        self.tokens = [bytes([i]) for i in range(256)] + [b"<eos>", b"<special>"]
        self.special_token_ids = [EOS, SPECIAL]
        self._tokenizer = tokenizer

    def __call__(self, text: str | bytes) -> list[int]:
        return list(text.encode() if isinstance(text, str) else text)
