"""`contentLogging: redacted` stores what is left of a text when everything that inspection finds was taken out."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from gateway.audit.content import ContentSealer
from gateway.audit.content_keys import parse_content_keys
from gateway.audit.content_reader import ContentReader
from gateway.audit.service import AuditService
from gateway.errors import Unavailable
from gateway.flow.parts import TextPart
from gateway.flow.stages import Exchange, Reserved
from gateway.flow.values import ChatRequest, CompletionRequest, GenerationParams, Message, Obligations
from gateway.guardrails.inspector import GuardrailInspector
from gateway.settings import GuardrailSettings
from tests.fakes.exchanges import ALLOW, admitted, finished

NIF = "12345678Z"
KEYS = parse_content_keys(f"k1:{base64.b64encode(b'k' * 32).decode()}", source="test")
SEALER = ContentSealer(KEYS, timedelta(days=1))


@pytest.fixture
def inspector() -> Iterator[GuardrailInspector]:
    inspector = GuardrailInspector(GuardrailSettings(timeout_ms=30_000))
    yield inspector
    inspector.close()


def asked(text: str | CompletionRequest) -> Reserved:
    """Policy asks for a redacted record, and for no redaction of what the model reads."""
    decision = replace(ALLOW, obligations=Obligations(content_logging="redacted", redaction="off"))
    exchange = admitted(asked=decision, decision=decision)
    if not isinstance(text, str):
        return replace(exchange, request=text)
    chat = ChatRequest("auto", (Message.of_text("user", text),), params=GenerationParams(max_tokens=64))
    return replace(exchange, request=chat)


async def texts(service: AuditService, engine: AsyncEngine, exchange: Exchange) -> dict[str, Any]:
    reader = ContentReader(engine, SEALER, settle=service.settle)
    found = await reader.of_request(exchange.request_id, tenant="acme")
    assert found is not None
    return {one.kind: one.content for one in found.texts}


async def test_prompt_and_answer_are_stored_without_what_inspection_finds(
    start: Any, engine: AsyncEngine, inspector: GuardrailInspector
) -> None:
    service, exchange = await start(sealer=SEALER, redact=inspector.redacted), asked(f"El NIF es {NIF}, gracias.")
    await service.intent(exchange)
    await service.completion(
        finished(exchange, completion_contents=((TextPart(f"Anotado: {NIF}."),), (TextPart("Hola"),)))
    )
    kept = await texts(service, engine, exchange)
    (message,) = kept["prompt"]["messages"]
    assert NIF not in message["content"]
    assert message["content"].startswith("El NIF es ")
    assert NIF not in kept["response"]["choices"][0]
    assert kept["response"]["choices"][1] == "Hola"


async def test_what_cannot_be_redacted_is_not_stored(
    start: Any, engine: AsyncEngine, inspector: GuardrailInspector
) -> None:
    service, exchange = (
        await start(sealer=SEALER, redact=inspector.redacted),
        asked(CompletionRequest("auto", ((1, 2, 3),))),
    )
    await service.intent(exchange)
    await service.completion(finished(exchange))
    assert await texts(service, engine, exchange) == {}


async def test_without_a_key_the_request_is_refused(start: Any, inspector: GuardrailInspector) -> None:
    service = await start(redact=inspector.redacted)
    with pytest.raises(Unavailable) as refused:
        await service.intent(asked("Hola"))
    assert refused.value.code == "content_key_missing"
