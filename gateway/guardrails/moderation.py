"""The guardrails as a model that one can ask: what they find in a text, as an answer of their own.

Implements `flow.ports.Backend` for one model that runs nothing: its answers are made while they are prepared.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping

from gateway.errors import InvalidRequest
from gateway.flow.values import (
    Chunk,
    EmbeddingRequest,
    GeneratingRequest,
    ModelCard,
    ModelRequest,
    ModerationRequest,
    Prepared,
    SchedulingHints,
    Usage,
    Verdicts,
)
from gateway.guardrails.inspector import GuardrailInspector

BACKEND = "guardrails"
CARD = ModelCard("esclusa-guardrails", BACKEND, context_window=1_000_000, actions=("moderations",), tools=False)


class ModerationBackend:
    def __init__(self, inspector: GuardrailInspector) -> None:
        self._inspector = inspector

    async def prepare(self, request: ModelRequest, card: ModelCard) -> Prepared:
        """Raises `Unavailable` for what could not be inspected in time."""
        del card
        if not isinstance(request, ModerationRequest):
            raise _moderates_only()
        return Prepared(0, counted=Verdicts(await self._inspector.verdicts(request.texts)))

    def generate(
        self,
        request: GeneratingRequest,
        card: ModelCard,
        *,
        prepared: Prepared,
        request_id: str,
        max_output_tokens: int,
        tenant_salt: bytes,
        scheduling: SchedulingHints,
    ) -> AsyncIterator[Chunk]:
        del request, card, prepared, request_id, max_output_tokens, tenant_salt, scheduling
        raise _moderates_only()

    async def embed(
        self, request: EmbeddingRequest, card: ModelCard, *, prepared: Prepared, scheduling: SchedulingHints
    ) -> tuple[tuple[tuple[float, ...], ...], Usage]:
        del request, card, prepared, scheduling
        raise _moderates_only()

    def status(self) -> Mapping[str, object]:
        return {"state": "ready", "stage": "ready", "percent": 100.0}


def _moderates_only() -> InvalidRequest:
    return InvalidRequest("This model only moderates.", code="unsupported_action", param="model")
