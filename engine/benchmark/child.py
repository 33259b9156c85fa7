"""One measurement in a process of its own: a job goes in as JSON, the last line of stdout is the answer.

Lines on stderr that begin with `PROGRESS` are passed on while the child runs; the rest is kept for the error message.
Nothing the child has started outlives it.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

PROGRESS = "progress: "
CHILD_TIMEOUT_S = 1800.0
_KEPT_LINES = 60

Say = Callable[[str], None]


class BenchmarkError(Exception):
    """A system could not be measured; the message says which one, why, and what to pass."""


def report_progress(line: str) -> None:
    """From inside a child: a line for the one who watches."""
    sys.stderr.write(f"{PROGRESS}{line}\n")
    sys.stderr.flush()


def run_child(
    command: Sequence[str],
    job: Mapping[str, Any],
    *,
    name: str,
    say: Say,
    environment: Mapping[str, str] | None = None,
    timeout_s: float = CHILD_TIMEOUT_S,
) -> dict[str, Any]:
    """Raises `BenchmarkError` when it cannot be started, takes longer than `timeout_s`, fails or answers nothing."""
    kept: deque[str] = deque(maxlen=_KEPT_LINES)
    with tempfile.TemporaryFile("w+") as answer:
        try:
            child = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=answer, stderr=subprocess.PIPE, text=True,
                env=None if environment is None else dict(environment), start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            raise BenchmarkError(f"{name} could not be run: {error}") from error
        listener = threading.Thread(target=_listen, args=(child, kept, name, say), daemon=True)
        listener.start()
        try:
            if child.stdin is not None:
                child.stdin.write(json.dumps(job))
                child.stdin.close()
            child.wait(timeout_s)
        except subprocess.TimeoutExpired as error:
            raise BenchmarkError(f"{name} did not end within {timeout_s:.0f} s") from error
        except BrokenPipeError:
            child.wait(timeout_s)
        finally:
            _end_group(child)
            listener.join(5.0)
            if child.stderr is not None:
                child.stderr.close()
        answer.seek(0)
        lines = answer.read().strip().splitlines()
    if child.returncode != 0 or not lines:
        raise BenchmarkError(f"{name} ended with {child.returncode}:\n" + "".join(kept)[-2000:])
    row: dict[str, Any] = json.loads(lines[-1])
    return row


def _listen(child: subprocess.Popen[str], kept: deque[str], name: str, say: Say) -> None:
    for line in child.stderr or ():
        if line.startswith(PROGRESS):
            say(f"{name}: {line.removeprefix(PROGRESS).rstrip()}")
        else:
            kept.append(line)


def _end_group(child: subprocess.Popen[str]) -> None:
    """A server that the child left behind would slow down whoever is measured next."""
    with suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()
