"""`esclusa serve` as a process of its own, with private stores and a spool in one folder, for tests that kill it.

Everything is real but the model, which is the scripted upstream. The trail is read from the private Postgres directly.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import asyncpg
import httpx2
import yaml
from sqlalchemy.engine import make_url

from gateway.local.issuer import DevIssuer
from gateway.local.postgres import running_url
from tests.fakes.shifted_clock import ShiftedClock
from tests.fakes.stage import POLICY

ROOT = Path(__file__).parents[2]


class GatewayProcess:
    """Start and end it as often as you like; the folder stays. Not a context manager: `stop` in a `finally`."""

    def __init__(self, folder: Path, ports: tuple[int, int], upstream_url: str, **sections: dict[str, Any]) -> None:
        self.port, self._metrics_port = ports
        self.url = f"http://127.0.0.1:{self.port}"
        self.data, self.log = folder / "data", folder / "gateway.log"
        self._config = folder / "esclusa.yaml"
        self._child: subprocess.Popen[bytes] | None = None
        self.data.mkdir(mode=0o711, exist_ok=True)
        issuer = DevIssuer.open(self.data)
        tree: dict[str, Any] = {
            "http": {"port": self.port, "metrics_port": self._metrics_port},
            "identity": {"providers": [json.loads(issuer.provider_settings().model_dump_json(exclude_none=True))]},
            "access": {"policy_file": str(POLICY)},
            "audit": {"spool_dir": str(self.data / "spool")},
            "local": {"data_dir": str(self.data)},
            "upstreams": {"up": {"base_url": upstream_url, "max_connections": 4000}},
            "models": [{"id": "mini", "tier": "small", "upstream": "up"}],
            "log": {"format": "json"},
        }
        for name, section in sections.items():
            tree[name] = {**tree.get(name, {}), **section}
        self.spool = Path(tree["audit"]["spool_dir"])
        self._config.write_text(yaml.safe_dump(tree), encoding="utf-8")

    # ------------------------------------------------------------------------------------------------- life

    def start(
        self, *, clock_ahead: timedelta | None = None, before: Sequence[str] = (), timeout_s: float = 90
    ) -> float:
        """Start it, wait until it is ready; how long that took. `before`: a command that runs it (prlimit)."""
        program = "from gateway.cli.main import main; main()"
        if clock_ahead is not None:
            program = (
                "import gateway.wiring.services, datetime; from tests.fakes.shifted_clock import ShiftedClock;"
                f"by = datetime.timedelta(seconds={clock_ahead.total_seconds()});"
                f"gateway.wiring.services.SystemClock = lambda: ShiftedClock(by); {program}"
            )
        command = [*before, sys.executable, "-c", program, "serve", "--config", str(self._config)]
        began = time.monotonic()
        with self.log.open("ab") as log:
            self._child = subprocess.Popen(
                command, cwd=ROOT, stdout=log, stderr=log, env={**os.environ, "PYTHONPATH": str(ROOT)}
            )
        while time.monotonic() - began < timeout_s:
            if self._child.poll() is not None:
                raise AssertionError(f"the gateway ended with {self._child.returncode}: {self.tail()}")
            if self.readiness()[0] == 200:
                return time.monotonic() - began
            time.sleep(0.05)
        raise AssertionError(f"not ready: {self.readiness()} {self.tail()}")

    @property
    def process(self) -> subprocess.Popen[bytes]:
        assert self._child is not None
        return self._child

    def kill(self) -> None:
        """SIGKILL; its stores live on, and the next start takes them over."""
        self.process.kill()
        self.process.wait(10)

    def stop(self, timeout_s: float = 60) -> int | None:
        """SIGTERM and wait; the exit status. None when it never ran."""
        if self._child is None:
            return None
        if self._child.poll() is None:
            self._child.send_signal(signal.SIGTERM)
            try:
                self._child.wait(timeout_s)
            except subprocess.TimeoutExpired:
                self.kill()
        return self._child.returncode

    def abandon(self) -> None:
        """Whatever state it is in: nothing of it, stores included, runs afterwards."""
        try:
            if self._child is not None and self._child.poll() is not None and self._child.returncode != 0:
                self.start()  # the stores of a killed gateway end with the next one
        finally:
            self.stop()

    def tail(self, count: int = 1500) -> str:
        return self.log.read_bytes()[-count:].decode(errors="replace")

    def log_lines(self, word: str) -> list[str]:
        return [line for line in self.log.read_text(errors="replace").splitlines() if word in line]

    # ---------------------------------------------------------------------------------------------- questions

    def token(self, subject: str = "u-1", *roles: str, clock_ahead: timedelta = timedelta(0)) -> str:
        issuer = DevIssuer.open(self.data, clock=ShiftedClock(clock_ahead))
        return issuer.mint(subject, roles or ("analyst",), department="finance", tenant="acme", ttl_s=3600)

    def readiness(self) -> tuple[int, dict[str, Any]]:
        try:
            answer = httpx2.get(f"{self.url}/readyz", timeout=5)
        except httpx2.TransportError:
            return 0, {}
        return answer.status_code, answer.json()

    def metric(self, name: str) -> float | None:
        """Of a metric without labels."""
        found = httpx2.get(f"http://127.0.0.1:{self._metrics_port}/metrics", timeout=10).text
        values = [line.split(" ")[1] for line in found.splitlines() if line.startswith(f"{name} ")]
        return float(values[0]) if values else None

    async def rows(self, statement: str, *params: Any) -> list[Any]:
        url = make_url(running_url(self.data / "postgres") or "").set(drivername="postgresql")
        connection = await asyncpg.connect(url.render_as_string(hide_password=False), timeout=5)
        try:
            return list(await connection.fetch(statement, *params))
        finally:
            await connection.close()

    def verify(self) -> subprocess.CompletedProcess[str]:
        """`esclusa audit verify`, on the stores of a gateway that is stopped."""
        program = "from gateway.cli.main import main; main()"
        return subprocess.run(
            [sys.executable, "-c", program, "audit", "verify", "--config", str(self._config)],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )

    # -------------------------------------------------------------------------------------------------- stores

    def postgres(self) -> list[int]:
        """Its processes, the server first."""
        return _tree(int((self.data / "postgres/data/postmaster.pid").read_text().split("\n", 1)[0]))

    def valkey(self) -> list[int]:
        return _tree(int((self.data / "valkey/valkey.pid").read_text()))


def _tree(pid: int) -> list[int]:
    children = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            if int(stat.read_text().rsplit(")", 1)[1].split()[1]) == pid:
                children.append(int(stat.parent.name))
    return [pid, *children]


def send(processes: Sequence[int], number: signal.Signals) -> None:
    for pid in processes:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
