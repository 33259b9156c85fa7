"""`echo`: the prompt before each choice's first text, with its log-probabilities where these were asked for."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from typing import Any, Protocol

from gateway.flow.values import (
    ChoiceEnd,
    Chunk,
    Delta,
    GenerationParams,
    Prompt,
    PromptLogprobs,
    TextDelta,
    TokenLogprob,
    Usage,
)

PIECE = 512
"""Prompt tokens a chunk: one chunk with all of a long prompt would hold the event loop."""
REPLACEMENT = "\N{REPLACEMENT CHARACTER}".encode()


class EngineChunks(Protocol):
    """An answer of the engine."""

    async def __anext__(self) -> Chunk: ...

    async def aclose(self) -> None: ...

    def used(self) -> Usage: ...


class EchoedAnswer:
    """An answer with the prompt before it. Only the first choice brings the prompt's log-probabilities: choices that
    were quicker wait for it."""

    def __init__(
        self,
        answer: EngineChunks,
        prompt: Prompt,
        params: GenerationParams,
        prompt_ids: Sequence[int],
        tokenizer: Any,
    ) -> None:
        self._answer, self._prompt, self._params = answer, prompt, params
        self._ids, self._tokenizer = prompt_ids, tokenizer
        self._text = ""
        self._entries: tuple[TokenLogprob, ...] = ()
        self._unopened = set(range(params.n))
        self._read = False
        self._held: list[Delta | ChoiceEnd] = []
        self._ready: deque[Chunk] = deque()

    def __aiter__(self) -> AsyncIterator[Chunk]:
        return self

    async def __anext__(self) -> Chunk:
        while not self._ready:
            self._ready.extend(await self._arrived(await self._answer.__anext__()))
        chunk = self._ready.popleft()
        if self._ready:
            await asyncio.sleep(0)  # between two pieces of a prompt it is others' turn
        return chunk

    async def aclose(self) -> None:
        await self._answer.aclose()

    def used(self) -> Usage:
        return self._answer.used()

    async def _arrived(self, chunk: Chunk) -> list[Chunk]:
        """The chunks that may leave now, in order."""
        match chunk:
            case PromptLogprobs(entries=entries):
                if not self._read:
                    await self._read_prompt(entries)
                asked = await asyncio.to_thread(_cut, entries, self._params.prompt_logprobs)
                return [] if asked is None else [PromptLogprobs(asked)]
            case Delta() | ChoiceEnd() if self._unopened:
                if not self._read:
                    if self._params.logprobs and chunk.index != 0:
                        self._held.append(chunk)
                        return []
                    await self._read_prompt((None,))
                held, self._held = [*self._held, chunk], []
                return [piece for one in held for piece in self._opened(one)]
        return [chunk]

    async def _read_prompt(self, values: Sequence[TokenLogprob | None]) -> None:
        self._read = True
        self._text, self._entries = await asyncio.to_thread(self._told, values)

    def _opened(self, chunk: Delta | ChoiceEnd) -> list[Chunk]:
        """The chunk; before a choice's first one the prompt. Its text comes with tokens, as what is generated does."""
        index = chunk.index
        if index not in self._unopened:
            return [chunk]
        self._unopened.discard(index)
        parts = [self._entries[at : at + PIECE] for at in range(0, len(self._entries), PIECE)] or [()]
        delta = chunk.last if isinstance(chunk, ChoiceEnd) else chunk
        first = replace(delta, text=self._text + delta.text, logprobs=(*parts.pop(), *delta.logprobs))
        if not self._unopened:
            self._entries = ()
        before = [TextDelta(index, logprobs=part) for part in parts]
        return [*before, replace(chunk, last=first) if isinstance(chunk, ChoiceEnd) else first]

    def _told(self, values: Sequence[TokenLogprob | None]) -> tuple[str, tuple[TokenLogprob, ...]]:
        """The prompt's text and the entry of each of its tokens. The first has no log-probability."""
        prompt, params, tokenizer = self._prompt, self._params, self._tokenizer
        if isinstance(prompt, str) and not params.logprobs:
            return prompt, ()
        raws = [tokenizer.token_bytes(token_id) for token_id in self._ids]
        text = prompt if isinstance(prompt, str) else b"".join(raws).decode("utf-8", "replace")
        if not params.logprobs:
            return text, ()
        if isinstance(prompt, str):
            special = [token_id in tokenizer.special_token_ids for token_id in self._ids]
            shown = shown_in(prompt.encode("utf-8", "replace"), raws, special)
        else:
            shown = shown_alone(raws)
        first = TokenLogprob(raws[0].decode("utf-8", "replace"), self._ids[0], None, tuple(raws[0]))
        # Fewer values than tokens where a deadline has ended the reading of the prompt.
        pairs = zip(values, shown, strict=False)
        return text, tuple([_entry(value or first, part, params.top_logprobs) for value, part in pairs])


def _cut(values: Sequence[TokenLogprob | None], top: int | None) -> tuple[TokenLogprob | None, ...] | None:
    """What `prompt_logprobs` has asked for, where `logprobs` has asked for more."""
    if top is None:
        return None
    return tuple([None if value is None else _entry(value, value.shown, top) for value in values])


def _entry(value: TokenLogprob, shown: bytes | None, top: int) -> TokenLogprob:
    return TokenLogprob(value.token, value.token_id, value.logprob, value.token_bytes, value.top[:top], shown)


def shown_in(text: bytes, raws: Sequence[bytes], special: Sequence[bool]) -> list[bytes]:
    """The part of `text` that each token stands for. Together they are the text: a token that a template of the
    tokenizer has added stands for nothing, and one that a normalizer has changed for as many bytes as it has."""
    shown, at = [], 0
    for raw, is_special in zip(raws, special, strict=True):
        bare = raw.removeprefix(b" ")  # the space that some tokenizers put before a text
        if text.startswith(raw, at):
            size = len(raw)
        elif is_special:
            size = 0
        elif text.startswith(bare, at):
            size = len(bare)
        else:
            size = len(raw)
        shown.append(text[at : at + size])
        at += size
    if shown:
        shown[-1] += text[at:]
    return shown


def shown_alone(raws: Sequence[bytes]) -> list[bytes]:
    """The same for a text that is made of the tokens alone: a character left open at its end shows as U+FFFD, and the
    answer's first bytes do not go on with it."""
    joined = b"".join(raws)
    tail = next((size for size in (1, 2, 3) if _is_open(joined[-size:])), 0)
    if not tail:
        return list(raws)
    shown, at, opened = [], 0, len(joined) - tail
    for raw in raws:
        kept = raw[: max(0, opened - at)]
        shown.append(kept + REPLACEMENT if at <= opened < at + len(raw) else kept)
        at += len(raw)
    return shown


def _is_open(tail: bytes) -> bool:
    """Whether these bytes are the beginning of one character."""
    try:
        tail.decode()
    except UnicodeDecodeError as error:
        return error.start == 0 and error.reason == "unexpected end of data"
    return False
