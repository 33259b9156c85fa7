"""A store that runs as our child process: start it, see it die, stop it, and clear what a killed parent left behind.

Knows processes and signals, not databases. Children get their own session, so that Ctrl-C in a terminal reaches the
gateway alone and the stores outlive the drain.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import socket
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from gateway.errors import ConfigError

LOOPBACK = "127.0.0.1"


class LocalStoreError(ConfigError):
    """A private store could not be started; the message says what was found and what to do."""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        port: int = probe.getsockname()[1]
        return port


def spawn(
    command: Sequence[str], *, log: Path, uid: int | None = None, gid: int | None = None
) -> subprocess.Popen[bytes]:
    """Start `command` with output appended to `log`. `uid` needs root."""
    with log.open("ab") as output:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            cwd="/",
            start_new_session=True,
            user=uid,
            group=gid,
            extra_groups=[] if uid is not None else None,
            env={"PATH": os.environ.get("PATH", "/usr/bin:/bin"), "LC_ALL": "C.UTF-8", "TZ": "UTC"},
        )


class Tie:
    """Ends a store when this process dies, however it dies: `kill -9` leaves no server behind in the background.

    A small shell waits at the other end of a pipe. The marker keeps it from signaling a stranger that got the number
    of a store which had ended before.
    """

    _SCRIPT = (
        'cat >/dev/null; if [ ! -e /proc/self ] || grep -aqF -- "$3" "/proc/$2/cmdline"; then kill -s "$1" "$2"; fi'
    )

    def __init__(self, pid: int, marker: str, end: signal.Signals) -> None:
        reading, self._writing = os.pipe()
        self._shell = subprocess.Popen(
            ["/bin/sh", "-c", self._SCRIPT, "esclusa-tie", end.name.removeprefix("SIG"), str(pid), marker],
            stdin=reading,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
            start_new_session=True,
        )
        os.close(reading)

    def cut(self) -> None:
        """The store is stopped in the ordinary way; nothing is left to watch."""
        # The whole session: the shell's `cat` holds the pipe too.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._shell.pid, signal.SIGKILL)
        self._shell.wait()
        os.close(self._writing)


def command_line(pid: int) -> str | None:
    """The command that process `pid` was started as, or None when there is none."""
    proc = Path("/proc")
    if (proc / "self").exists():
        try:
            return (proc / str(pid) / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
        except OSError:
            return None
    listing = subprocess.run(["ps", "-p", str(pid), "-o", "command="], capture_output=True, text=True, check=False)
    return listing.stdout.strip() or None


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    # A zombie answers signals and has no command line.
    return command_line(pid) not in (None, "")


def stop_orphan(pid: int, marker: str, *, polite: signal.Signals, patience_s: float = 10.0) -> bool:
    """End process `pid` if its command line holds `marker` (our own data folder). False: it is not ours, left alone."""
    line = command_line(pid)
    if line is None or marker not in line:
        return False
    for step, wait_s in ((polite, patience_s), (signal.SIGKILL, 5.0)):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, step)
        deadline = time.monotonic() + wait_s
        while time.monotonic() < deadline:
            if not is_alive(pid):
                return True
            time.sleep(0.02)
    raise LocalStoreError(f"process {pid} of an earlier run does not end; stop it and start again")


def stop_child(
    process: subprocess.Popen[bytes], *, signals: Sequence[signal.Signals], patience_s: float = 10.0
) -> int | None:
    """Ask with each signal in turn, then SIGKILL. Returns the exit status."""
    for step in (*signals, signal.SIGKILL):
        if process.poll() is not None:
            break
        process.send_signal(step)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(patience_s)
    return process.poll()


def read_or_create_secret(path: Path) -> str:
    """A random password kept in a file that only we may read."""
    with contextlib.suppress(FileNotFoundError):
        kept = path.read_text().strip()
        if kept:
            return kept
    fresh = secrets.token_urlsafe(24)
    partial = path.with_name(path.name + ".new")
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(fresh)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)
    return fresh


def tail(path: Path, limit: int = 2000) -> str:
    """The end of a log, for error messages shown to the operator."""
    try:
        return path.read_bytes()[-limit:].decode(errors="replace").strip()
    except OSError:
        return ""
