"""The pipeline's one broad boundary, and the shield under which requests are settled and recorded.

A lack of file descriptors is overload. Anything else that is not a `GatewayError` is a bug: logged with its traceback,
shown to the caller as a bare 500.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from types import TracebackType
from typing import Any, TypeVar

from gateway.descriptors import is_shortage, no_descriptor
from gateway.errors import GatewayError

T = TypeVar("T")
_PASSES = (
    GatewayError,
    StopAsyncIteration,
    asyncio.CancelledError,
    GeneratorExit,
    KeyboardInterrupt,
    SystemExit,
)
"""Everything else is a failure of this request, also a panic of a Rust extension, which is no `Exception`."""
_log = logging.getLogger("esclusa.pipeline")


class Boundary:
    """`with BOUNDARY:` lets `GatewayError` and cancellation through and turns the rest into `internal_error`."""

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None and not isinstance(error, _PASSES):
            if is_shortage(error):
                raise no_descriptor() from None
            _log.error("unexpected failure in a request", exc_info=error)
            raise GatewayError(
                "The gateway failed on this request; the failure is in its log under this request id.",
                detail=type(error).__name__,
            ) from None


BOUNDARY = Boundary()


async def close(stream: object) -> None:
    """Close an async iterator where it can be closed; frees what its backend holds."""
    aclose = getattr(stream, "aclose", None)
    if aclose is not None:
        await aclose()


class Finalizers:
    """Work that must end even when its request is cancelled. One per pipeline; drained on shutdown."""

    def __init__(self) -> None:
        self._running: set[asyncio.Task[Any]] = set()

    async def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Await `work` under a shield: a cancellation of the caller is delivered, and `work` still ends."""
        task = asyncio.get_running_loop().create_task(work)
        self._running.add(task)  # the loop itself keeps only weak references
        task.add_done_callback(self._running.discard)
        return await asyncio.shield(task)

    async def drain(self, timeout_s: float) -> int:
        """Wait for what still runs; returns how many were left when the time was up."""
        if not self._running:
            return 0
        _, pending = await asyncio.wait(self._running, timeout=timeout_s)
        return len(pending)
