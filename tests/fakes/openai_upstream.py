"""A scripted OpenAI-compatible server on a loopback port: a real HTTP peer, with the model replaced by a script.

Counts what it is asked and remembers headers, so that tests can see what was forwarded.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

WORDS = ("Hola", ", ", "mundo", "!")


@dataclass
class Seen:
    path: str
    headers: dict[str, str]
    body: dict[str, Any]


@dataclass
class Upstream:
    """`mode`: ok, slow (waits between events), late (waits before it answers), die (breaks off mid-stream), error (HTTP
    500), busy (429), refuse (400), garbage (not HTTP), hang (never answers), drop (closes each connection after one
    answer)."""

    mode: str = "ok"
    words: tuple[str, ...] = WORDS
    delay_s: float = 0.05
    seen: list[Seen] = field(default_factory=list)
    port: int = 0
    connections: int = 0
    aborted: int = 0
    on_event: Callable[[int], None] | None = None
    keeps_limits: bool = False
    """Stop at `max_tokens`, as real servers do; a word is a token."""
    says: dict[str, Any] | None = None
    """Instead of words: `message` of whole answers, `deltas` of streams, and the `finish_reason` of both."""
    misreports: dict[str, Any] | None = None
    """Sent in place of the true usage; `{"usage": ...}` with any value, or `{}` for none at all."""
    _server: asyncio.Server | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    async def __aenter__(self) -> Upstream:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._server is not None:
            self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while await self._answer(reader, writer):
                pass
        except (ConnectionError, asyncio.IncompleteReadError):
            self.aborted += 1
        except asyncio.CancelledError:
            pass
        finally:
            writer.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        lines = head.split("\r\n")
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines[1:] if line)}
        body = json.loads(await reader.readexactly(int(headers["content-length"])))
        self.seen.append(Seen(lines[0].split(" ")[1], headers, body))
        if self.mode == "hang":
            await asyncio.sleep(3600)
        if self.mode == "late":
            await asyncio.sleep(self.delay_s)
        if self.mode == "garbage":
            writer.write(b"SSH-2.0-OpenSSH_9.6\r\n\r\n")
            return False
        if self.mode in ("error", "busy", "refuse"):
            status, extra = {"error": (500, ""), "busy": (429, "retry-after: 7\r\n"), "refuse": (400, "")}[self.mode]
            await self._whole(writer, {"error": {"message": "secret upstream text", "code": "x"}}, status, extra)
            return True
        if lines[0].split(" ")[1].endswith("/embeddings"):
            await self._whole(writer, self._vectors(body))
        elif body.get("stream"):
            await self._stream(writer, body)
        else:
            await self._whole(writer, self._completion(body))
        return self.mode not in ("die", "drop")

    async def _whole(self, writer: asyncio.StreamWriter, value: Any, status: int = 200, extra: str = "") -> None:
        raw = json.dumps(value).encode()
        head = f"HTTP/1.1 {status} X\r\ncontent-type: application/json\r\n{extra}content-length: {len(raw)}\r\n\r\n"
        writer.write(head.encode() + raw)
        await writer.drain()

    async def _stream(self, writer: asyncio.StreamWriter, body: dict[str, Any]) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
        chat = "messages" in body
        words, reason = self._answer_to(body)
        if self.says is not None:
            words, reason = (), self.says["finish_reason"]
            for delta in self.says["deltas"]:
                await self._event(writer, {"choices": [{"index": 0, "delta": delta, "finish_reason": None}]})
        for number, word in enumerate(words):
            if self.on_event is not None:
                self.on_event(number)
            if self.mode == "slow":
                await asyncio.sleep(self.delay_s)
            choice = {"delta": {"content": word}} if chat else {"text": word}
            await self._event(writer, {"choices": [{"index": 0, **choice, "finish_reason": None}]})
            if self.mode == "die" and number == 1:
                return
        end: dict[str, Any] = {"delta": {}} if chat else {"text": ""}
        await self._event(writer, {"choices": [{"index": 0, **end, "finish_reason": reason}]})
        await self._event(writer, {"choices": [], **self._usage(11, len(words))})
        await self._raw(writer, b"data: [DONE]\n\n")
        writer.write(b"0\r\n\r\n")
        await writer.drain()

    async def _event(self, writer: asyncio.StreamWriter, value: Any) -> None:
        await self._raw(writer, b"data: " + json.dumps(value).encode() + b"\n\n")

    async def _raw(self, writer: asyncio.StreamWriter, data: bytes) -> None:
        writer.write(b"%x\r\n%b\r\n" % (len(data), data))
        await writer.drain()

    def _completion(self, body: dict[str, Any]) -> dict[str, Any]:
        words, reason = self._answer_to(body)
        text = "".join(words)
        choices = []
        for index in range(body.get("n", 1)):
            content = {"message": {"role": "assistant", "content": text}} if "messages" in body else {"text": text}
            if self.says is not None:
                content, reason = {"message": self.says["message"]}, self.says["finish_reason"]
            choices.append({"index": index, "finish_reason": reason, **content})
        return {
            "id": "up-1",
            "object": "chat.completion",
            "model": "up",
            "choices": choices,
            **self._usage(11, len(words)),
        }

    def _answer_to(self, body: dict[str, Any]) -> tuple[tuple[str, ...], str]:
        limit = body.get("max_tokens") or body.get("max_completion_tokens")
        if self.keeps_limits and limit is not None and limit < len(self.words):
            return self.words[:limit], "length"
        return self.words, "stop"

    def _usage(self, prompt: int, words: int) -> dict[str, Any]:
        if self.misreports is not None:
            return self.misreports
        return {"usage": {"prompt_tokens": prompt, "completion_tokens": words, "total_tokens": prompt + words}}

    def _vectors(self, body: dict[str, Any]) -> dict[str, Any]:
        rows = [{"index": index, "embedding": [0.5, -0.25, float(index)]} for index in range(len(body["input"]))]
        return {"object": "list", "data": rows, **self._usage(6, 0)}
