"""Encrypts the texts of a request for its records, and refuses where they cannot be encrypted.

The prompt goes beside the intent, the answer beside the completion, in the same frame of the spool: what is promised
for the record holds for them. Knows no spool and no SQL.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from datetime import datetime
from uuid import UUID

from gateway.audit.canonical import storable
from gateway.audit.content import (
    ContentSealer,
    ContentTooLarge,
    Sealed,
    cut_response,
    prompt_document,
    response_document,
)
from gateway.audit.request_event import content_level
from gateway.errors import RequestTooLarge, Unavailable
from gateway.flow.parts import Content
from gateway.flow.stages import Concluded, Exchange, Received, Reserved, principal_of, request_of, served_of, stage_of
from gateway.flow.values import ChatRequest, CompletionRequest, Message, ModelRequest

log = logging.getLogger("esclusa.audit")

STORED = ("encrypted", "redacted")
"""Values of `contentLogging` that keep texts."""
Redact = Callable[[ModelRequest], Awaitable[ModelRequest | None]]
"""The request as it may be stored; None when that cannot be said."""
LARGE_CHARACTERS = 64 * 1024
"""Longer texts are encrypted in a thread: the event loop would feel them."""


class ContentRecorder:
    """`sealer` None: no key is configured, and a request whose texts must be stored is refused before it runs."""

    def __init__(self, sealer: ContentSealer | None, redact: Redact | None = None) -> None:
        self._sealer, self._redact = sealer, redact
        self._has_prompt: set[UUID] = set()

    async def of_intent(self, exchange: Exchange, now: datetime) -> tuple[Sealed, ...]:
        """The prompt, where policy wants it. For a request that is about to run it raises `Unavailable` (503
        `content_key_missing`) without a key and `RequestTooLarge` (413) for what cannot be stored."""
        stage = stage_of(exchange)
        request = request_of(stage)
        if content_level(stage) not in STORED or request is None:
            return ()
        runs = isinstance(exchange, Reserved)
        if self._sealer is None:
            if runs:
                raise Unavailable(
                    "Policy asks for content to be stored, and this gateway has no key for it.",
                    code="content_key_missing",
                    hint="an operator must set `audit.content_key_file`, or the policy's `contentLogging` must change",
                    retry_after_s=60,
                )
            return ()
        try:
            sealed = await self._prompt(self._sealer, stage, request, now)
        except ContentTooLarge:
            if runs:
                raise RequestTooLarge(
                    "The prompt is larger than what can be recorded, and policy asks for its record.",
                    hint="shorten the prompt",
                ) from None
            return ()
        self._has_prompt.add(exchange.request_id)
        return () if sealed is None else (sealed,)

    async def of_completion(self, exchange: Concluded, now: datetime) -> tuple[Sealed, ...]:
        """The answer; and the prompt where only a later hop asked for it. Never raises."""
        has_prompt = exchange.request_id in self._has_prompt
        self._has_prompt.discard(exchange.request_id)
        stage = exchange.stage
        request = request_of(stage)
        if self._sealer is None or content_level(stage) not in STORED or request is None:
            return ()
        found: list[Sealed | None] = []
        if not has_prompt and served_of(stage) is not None:
            try:
                found.append(await self._prompt(self._sealer, stage, request, now))
            except ContentTooLarge:
                log.error("a prompt was too large to be recorded", extra={"request_id": str(exchange.request_id)})
        contents = exchange.completion_contents
        if contents:
            found.append(await self._response(self._sealer, stage, contents, now))
        return tuple(one for one in found if one is not None)

    async def _prompt(
        self, sealer: ContentSealer, stage: Received, request: ModelRequest, now: datetime
    ) -> Sealed | None:
        """None where it must be redacted and cannot be."""
        cleaned = await self._cleaned(stage, request)
        if cleaned is None:
            return None
        request = cleaned
        size = sum(map(len, request.texts))
        if isinstance(request, CompletionRequest):
            size = sum(map(len, request.prompts))
        request_id, tenant = stage.request_id, tenant_of(stage)
        return await _run(size, lambda: sealer.seal("prompt", prompt_document(request), request_id, tenant, now))

    async def _response(
        self, sealer: ContentSealer, stage: Received, contents: tuple[Content, ...], now: datetime
    ) -> Sealed | None:
        said = ChatRequest("-", tuple([Message("assistant", content) for content in contents]))
        cleaned = await self._cleaned(stage, said)
        if not isinstance(cleaned, ChatRequest):
            return None
        choices = [message.content for message in cleaned.messages]
        request_id, tenant = stage.request_id, tenant_of(stage)

        def seal() -> Sealed:
            try:
                return sealer.seal("response", response_document(choices), request_id, tenant, now)
            except ContentTooLarge:
                return sealer.seal("response", cut_response(choices), request_id, tenant, now)

        return await _run(sum(map(len, cleaned.texts)), seal)

    async def _cleaned(self, stage: Received, request: ModelRequest) -> ModelRequest | None:
        if content_level(stage) != "redacted":
            return request
        cleaned = None if self._redact is None else await self._redact(request)
        if cleaned is None:
            log.warning("a text could not be redacted and is not stored", extra={"request_id": str(stage.request_id)})
        return cleaned


def tenant_of(stage: Received) -> str:
    """As the column of the record has it."""
    return storable(principal_of(stage).tenant, 256) or ""


async def _run(size: int, seal: Callable[[], Sealed]) -> Sealed:
    return await asyncio.to_thread(seal) if size > LARGE_CHARACTERS else seal()
