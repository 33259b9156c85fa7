"""The base of the private stores: one server process below one folder, on loopback, behind a password of its own.

Owns the process's life and its tie to ours. How a server is prepared, started and asked is its subclass's.
"""

from __future__ import annotations

import signal
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar

from gateway.local.child import LocalStoreError, Tie, stop_child


class PrivateServer(ABC):
    """`start` gives its URL; `stop` ends it cleanly. Blocking calls: run them outside the event loop."""

    name: ClassVar[str]
    """For messages, logs and metrics."""
    stop_signals: ClassVar[Sequence[signal.Signals]]
    """In turn, before SIGKILL."""
    stop_patience_s: ClassVar[float] = 10.0

    def __init__(self, root: Path, *, options: Mapping[str, str] | None = None) -> None:
        self._root = root.absolute()
        self._options = dict(options or {})
        self._process: subprocess.Popen[bytes] | None = None
        self._tie: Tie | None = None
        self._port: int | None = None
        self._password = ""

    @abstractmethod
    def start(self, *, timeout_s: float = 60.0, port: int | None = None) -> str:
        """Prepare on first use, clear an orphan of a killed run, start, wait until ready.

        Returns the URL, on a free port or on `port`. Raises `LocalStoreError` with the end of the server's log.
        """

    @abstractmethod
    def _url(self, port: int) -> str: ...

    @property
    def url(self) -> str:
        """The address of the started server."""
        if self._port is None:
            raise LocalStoreError(f"the private {self.name} has not been started")
        return self._url(self._port)

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    @property
    def port(self) -> int | None:
        return self._port

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def stop(self) -> None:
        """In good order: sessions are ended, what was acknowledged is kept."""
        if self._process is not None:
            stop_child(self._process, signals=self.stop_signals, patience_s=self.stop_patience_s)
            self._process = None
        self._cut_tie()

    def _cut_tie(self) -> None:
        if self._tie is not None:
            self._tie.cut()
            self._tie = None
