"""Calls to a backend before its first chunk, while another candidate can still be tried. Decides nothing."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TypeVar

from gateway.errors import DeadlineExceeded, GatewayError, Unavailable, UpstreamFailed
from gateway.flow.values import (
    ChoiceEnd,
    Chunk,
    EmbeddingRequest,
    ModelCard,
    Prepared,
    TextDelta,
    TokenCount,
    Usage,
    UsageReport,
    Vectors,
)

T = TypeVar("T")


class FirstByteFailed(Exception):
    """A backend failed while another candidate can still be tried."""

    def __init__(self, error: GatewayError) -> None:
        super().__init__(error.message)
        self.error = error


def at_once(begin: Callable[[], T]) -> T:
    """A backend that knows already that it cannot, a paused engine say, refuses before there is anything to await."""
    try:
        return begin()
    except DeadlineExceeded:
        raise
    except (Unavailable, UpstreamFailed) as error:
        raise FirstByteFailed(error) from None


async def backend_call(call: Awaitable[T]) -> T:
    try:
        return await call
    except DeadlineExceeded:
        raise
    except (Unavailable, UpstreamFailed) as error:
        raise FirstByteFailed(error) from None


async def counting(prepared: Prepared) -> AsyncIterator[Chunk]:
    yield UsageReport(Usage())
    yield prepared.counted or TokenCount(prepared.prompt_tokens or 0)
    yield ChoiceEnd(TextDelta(), "stop")


async def embedding(
    embed: Callable[[EmbeddingRequest, ModelCard], Awaitable[tuple[tuple[tuple[float, ...], ...], Usage]]],
    request: EmbeddingRequest,
    card: ModelCard,
) -> AsyncIterator[Chunk]:
    vectors, usage = await embed(request, card)
    yield UsageReport(usage)
    yield Vectors(vectors)
    yield ChoiceEnd(TextDelta(), "stop")
