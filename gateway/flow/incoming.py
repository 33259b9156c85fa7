"""A request as the API hands it to the pipeline, before anything of it is read."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from gateway.flow.context import RequestContext
from gateway.flow.stages import Reserved
from gateway.flow.values import Credential, ModelRequest, Principal

Complete = Callable[[ModelRequest, Principal, RequestContext], Awaitable[ModelRequest]]


@dataclass(frozen=True, slots=True)
class IncomingRequest:
    """What the API hands over. The body is read only after the caller is known: strangers cost no parsing."""

    context: RequestContext
    credential: Callable[[], Credential]
    receive: Callable[[], Awaitable[ModelRequest]]
    gone: Callable[[], bool] = lambda: False
    """True once the client has hung up; tells a disconnect from another cancellation."""
    under_way: Callable[[Reserved], None] = lambda _: None
    """Told that a backend has begun, each time one has."""
    complete: Complete | None = None
    """Puts in what the caller has stored and the body only names."""
    caller: Callable[[], Awaitable[Principal]] | None = None
    """In place of the credential: of a request that waited, whose caller was verified when it came and is now again."""

    async def read(self, caller: Principal) -> ModelRequest:
        request = await self.receive()
        return request if self.complete is None else await self.complete(request, caller, self.context)
