"""The whole gateway on a free port, on an event loop of its own in a thread; everything in it is real."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

import uvloop

from gateway.api.http.startup_app import BootProgress
from gateway.app import serve
from gateway.settings import Settings
from gateway.wiring.running_services import Services

T = TypeVar("T")


class RunningGateway:
    """Use as a context manager; `url` answers once it is entered, and every model is loaded."""

    def __init__(self, settings: Settings, *, ready_timeout_s: float = 60.0) -> None:
        self._settings = settings
        self._timeout_s = ready_timeout_s
        self._thread = threading.Thread(target=self._run, name="gateway", daemon=True)
        self._ready = threading.Event()
        self._failure: BaseException | None = None
        self.progress = BootProgress()
        self.url = ""
        self.services: Services
        self.loop: asyncio.AbstractEventLoop
        self._stop: asyncio.Event

    def __enter__(self) -> RunningGateway:
        self._thread.start()
        if not self._ready.wait(self._timeout_s):
            raise TimeoutError(f"the gateway is not ready: {self.progress}")
        if self._failure is not None:
            raise self._failure
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        if self._thread.is_alive():
            self.loop.call_soon_threadsafe(self._stop.set)
            self._thread.join(30)
            if self._thread.is_alive():
                raise TimeoutError("the gateway did not stop")
            if self._failure is not None:
                raise self._failure

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the gateway's loop."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(30)

    def _run(self) -> None:
        try:
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                runner.run(self._serve())
        except BaseException as error:  # noqa: BLE001 - told to the test that waits
            self._failure = error
        finally:
            self._ready.set()

    async def _serve(self) -> None:
        self.loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        await serve(self._settings, on_ready=self._on_ready, progress=self.progress, stop=self._stop)

    async def _on_ready(self, services: Services, url: str) -> None:
        self.services, self.url = services, url
        self._ready.set()
