"""A model's chat template: messages to prompt text, in a child process with limits on its time and memory.

Owns the child (`engine.template_worker`): started at first use, again after a template that exceeded its limits, ended
with this object. Knows no token ids. May be called from several threads; one conversation is rendered at a time.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from engine.errors import EngineFault, InvalidInput, UnsupportedModel
from engine.template_worker import LENGTH

Message = Mapping[str, Any]
CPU_LIMIT_S = 5.0
"""Processor time of one conversation. Real templates take milliseconds for thousands of messages."""
MEMORY_LIMIT_BYTES = 1 << 30
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
    ) -> None:
        """Raises UnsupportedModel for a template that cannot be compiled within the limits."""
        self._source, self._now = source, now or (lambda: datetime.now(UTC))
        self._tokens = {"bos_token": bos_token, "eos_token": eos_token}
        self._limits = (str(cpu_limit_s), str(memory_limit_bytes))
        self._lock = threading.Lock()
        self._child: subprocess.Popen[bytes] | None = None
        self._ending: weakref.finalize[..., ChatTemplate] | None = None
        try:
            with self._lock:
                self._start()
        except EngineFault as error:
            raise UnsupportedModel(f"the model's chat template cannot be read: {error.message}") from error

    def render(self, messages: Sequence[Message], add_generation_prompt: bool = True) -> str:
        """Raises InvalidInput with the template's own message when it refuses the roles or their order, EngineFault
        when it exceeds its limits."""
        request = {
            "messages": list(messages),
            "add_generation_prompt": add_generation_prompt,
            "now": self._now().isoformat(),
            **self._tokens,
        }
        with self._lock:
            reply = self._ask(self._child or self._start(), request)
        if "refusal" in reply:
            roles = [str(message.get("role"))[:32] for message in messages[:16]]
            raise InvalidInput("messages", roles, f"the model's chat template refuses them: {reply['refusal']}")
        return reply["text"]

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
        reply = self._ask(child, {"template": self._source})
        if "refusal" in reply:
            self._stop()
            raise EngineFault(reply["refusal"])
        return child

    def _ask(self, child: subprocess.Popen[bytes], message: Mapping[str, Any]) -> dict[str, str]:
        data = json.dumps(message).encode()
        try:
            _write(child, LENGTH.pack(len(data)) + data)
            reply: dict[str, str] = json.loads(_read(child, *LENGTH.unpack(_read(child, LENGTH.size))))
        except (OSError, EOFError):
            self._stop()
            raise EngineFault(
                f"the chat template exceeds its limits ({self._limits[0]} s, {int(self._limits[1]) >> 20} MiB)",
                hint="the template comes with the model; use another copy of the model",
            ) from None
        return reply

    def _stop(self) -> None:
        if self._ending is not None:
            self._ending()
        self._child = self._ending = None


def _write(child: subprocess.Popen[bytes], data: bytes) -> None:
    """The child reads a whole message before it answers, so both never wait for each other."""
    assert child.stdin is not None
    view = memoryview(data)
    while view:
        view = view[child.stdin.write(view) or 0 :]


def _read(child: subprocess.Popen[bytes], size: int) -> bytes:
    assert child.stdout is not None
    parts = bytearray()
    while len(parts) < size:
        part = child.stdout.read(min(size - len(parts), 1 << 20))
        if not part:
            raise EOFError
        parts += part
    return bytes(parts)


def _end(child: subprocess.Popen[bytes]) -> None:
    for pipe in (child.stdin, child.stdout):
        if pipe is not None:
            pipe.close()
    child.kill()
    child.wait()
