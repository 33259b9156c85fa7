"""A model's chat template: messages to prompt text, in a child process with limits on its time and memory.

Owns the child (`template_worker`): started at once, again after a template that exceeded its limits or a child that
somebody ended, and ended with this object. Knows no token ids. May be called from several threads; renders one
conversation at a time.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from engine.errors import EngineFault, InvalidInput, UnsupportedModel
from engine.text.template_worker import LENGTH, REFUSAL

Message = Mapping[str, Any]
CPU_LIMIT_S = 5.0
"""Processor time of one conversation. Real templates take milliseconds for thousands of messages."""
MEMORY_LIMIT_BYTES = 1 << 30
WALL_LIMIT_S = 60.0
"""A child that is frozen from outside (a debugger, a cgroup) uses no processor time and must not hold its callers."""
OWN_VARIABLES = ("messages", "tools", "documents", "add_generation_prompt", "bos_token", "eos_token")
WORKER = Path(__file__).with_name("template_worker.py")


class ChatTemplate:
    """`bos_token` and `eos_token` are texts that templates may print; `now` feeds `strftime_now`."""

    def __init__(
        self,
        source: str,
        bos_token: str,
        eos_token: str,
        now: Callable[[], datetime] | None = None,
        *,
        cpu_limit_s: float = CPU_LIMIT_S,
        memory_limit_bytes: int = MEMORY_LIMIT_BYTES,
        wall_limit_s: float = WALL_LIMIT_S,
    ) -> None:
        """Raises UnsupportedModel for a template that cannot be compiled within the limits."""
        self._source, self._now = source, now or (lambda: datetime.now(UTC))
        self._tokens = {"bos_token": bos_token, "eos_token": eos_token}
        self._limits, self._wall_limit_s = (str(cpu_limit_s), str(memory_limit_bytes)), wall_limit_s
        self._lock = threading.Lock()
        self._child: subprocess.Popen[bytes] | None = None
        self._ending: weakref.finalize[..., ChatTemplate] | None = None
        try:
            with self._lock:
                self._start()
        except EngineFault as error:
            raise UnsupportedModel(f"the model's chat template cannot be read: {error.message}") from error

    def render(
        self,
        messages: Sequence[Message],
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] = (),
        extra: Mapping[str, Any] | None = None,
    ) -> str:
        """`extra`: further variables of the template, such as `enable_thinking`. Raises InvalidInput with the
        template's own message when it refuses the roles or their order, EngineFault when it exceeds its limits."""
        request = {
            "messages": list(messages),
            "tools": list(tools),
            "extra": {name: value for name, value in (extra or {}).items() if name not in OWN_VARIABLES},
            "add_generation_prompt": add_generation_prompt,
            "now": self._now().isoformat(),
            **self._tokens,
        }
        with self._lock:
            try:
                kind, text = self._ask(self._child or self._start(), request)
            except _Ended:  # by somebody else, such as the kernel's out-of-memory killer: not the template's fault
                kind, text = self._ask(self._start(), request)
        if kind == REFUSAL:
            roles = [str(message.get("role"))[:32] for message in messages[:16]]
            raise InvalidInput("messages", roles, f"the model's chat template refuses them: {text}")
        return text

    def close(self) -> None:
        with self._lock:
            self._stop()

    def _start(self) -> subprocess.Popen[bytes]:
        child = subprocess.Popen(
            [sys.executable, "-I", str(WORKER), *self._limits],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            bufsize=0,
            start_new_session=True,  # Ctrl-C is for the gateway, which still renders while it drains
        )
        self._child = child
        self._ending = weakref.finalize(self, _end, child)
        for pipe in (child.stdin, child.stdout):
            assert pipe is not None
            os.set_blocking(pipe.fileno(), False)
        kind, text = self._ask(child, {"template": self._source})
        if kind == REFUSAL:
            self._stop()
            raise EngineFault(text)
        return child

    def _ask(self, child: subprocess.Popen[bytes], message: Mapping[str, Any]) -> tuple[bytes, str]:
        data = json.dumps(message).encode()
        until_s = time.monotonic() + self._wall_limit_s
        try:
            _write(child, LENGTH.pack(len(data)) + data, until_s)
            head = _read(child, LENGTH.size + 1, until_s)
            (size,) = LENGTH.unpack(head[:-1])
            text = _read(child, size, until_s).decode("utf-8", "surrogatepass")
        except (OSError, EOFError, TimeoutError) as error:
            ended_by = None if isinstance(error, TimeoutError) else _status(child)
            self._stop()
            if ended_by in (-signal.SIGKILL, -signal.SIGTERM):
                raise _Ended("the process of the chat template was ended", hint="send it again") from None
            raise EngineFault(
                f"the chat template exceeds its limits ({self._limits[0]} s, {int(self._limits[1]) >> 20} MiB)",
                hint="the template comes with the model; use another copy of the model",
            ) from None
        return head[-1:], text

    def _stop(self) -> None:
        if self._ending is not None:
            self._ending()
        self._child = self._ending = None


class _Ended(EngineFault):
    """The child was killed from outside."""


def _write(child: subprocess.Popen[bytes], data: bytes, until_s: float) -> None:
    """The child reads a whole message before it answers, so both never wait for each other."""
    assert child.stdin is not None
    view = memoryview(data)
    while view:
        _wait(child.stdin.fileno(), select.POLLOUT, until_s)
        view = view[child.stdin.write(view) or 0 :]


def _read(child: subprocess.Popen[bytes], size: int, until_s: float) -> bytes:
    assert child.stdout is not None
    parts = bytearray()
    while len(parts) < size:
        _wait(child.stdout.fileno(), select.POLLIN, until_s)
        part = child.stdout.read(min(size - len(parts), 1 << 20))
        if part == b"":
            raise EOFError
        parts += part or b""
    return bytes(parts)


def _wait(descriptor: int, event: int, until_s: float) -> None:
    """Until the pipe is ready or closed. Raises TimeoutError at `until_s` on the monotonic clock."""
    poll = select.poll()
    poll.register(descriptor, event)
    if not poll.poll(max(0.0, until_s - time.monotonic()) * 1000):
        raise TimeoutError


def _status(child: subprocess.Popen[bytes]) -> int | None:
    """How the child ended; its pipes close a moment before."""
    try:
        return child.wait(timeout=5)
    except subprocess.TimeoutExpired:
        return None


def _end(child: subprocess.Popen[bytes]) -> None:
    for pipe in (child.stdin, child.stdout):
        if pipe is not None:
            pipe.close()
    child.kill()
    child.wait()
