"""An OpenAI-compatible server that answers at once: `python -m gateway.benchmark.upstream PORT`.

A bare protocol, so that it is never the bottleneck of a measurement.
"""

from __future__ import annotations

import asyncio
import sys
from typing import cast

import orjson
import uvloop

ANSWER = orjson.dumps(
    {
        "id": "chatcmpl-bench",
        "object": "chat.completion",
        "created": 1,
        "model": "bench",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "Una esclusa iguala el nivel del agua."},
                "finish_reason": "stop",
            }
        ],
        "usage": {"prompt_tokens": 21, "completion_tokens": 9, "total_tokens": 30},
    }
)
FRAME = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (len(ANSWER), ANSWER)


STREAM_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n"
STREAM_CHUNKS, STREAM_PAUSE_S = 40, 0.05


def stream_event(delta: dict[str, str], finish_reason: str | None) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": finish_reason}
    chunk = {"id": "chatcmpl-bench", "object": "chat.completion.chunk", "created": 1, "model": "bench"}
    return b"data: %b\n\n" % orjson.dumps({**chunk, "choices": [choice]})


class Instant(asyncio.Protocol):
    """Answers each complete request with the same bytes; one that streams with a word every 50 ms, for two seconds."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's are no subclasses
        self._buffer = b""

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        while True:
            end = self._buffer.find(b"\r\n\r\n")
            if end < 0:
                return
            size = end + 4 + body_length(self._buffer[:end])
            if len(self._buffer) < size:
                return
            streams = b'"stream":true' in self._buffer[end:size]
            self._buffer = self._buffer[size:]
            if streams:
                self._transport.write(STREAM_HEAD)
                self._say(STREAM_CHUNKS)
                return
            self._transport.write(FRAME)

    def _say(self, more: int) -> None:
        if self._transport.is_closing():
            return
        if more:
            self._transport.write(stream_event({"content": "agua "}, None))
            asyncio.get_running_loop().call_later(STREAM_PAUSE_S, self._say, more - 1)
            return
        self._transport.write(stream_event({}, "stop") + b"data: [DONE]\n\n")
        self._transport.close()


def body_length(head: bytes) -> int:
    """The `content-length` of a message head; 0 when it has none (chunked bodies are not read here)."""
    lowered = head.lower()
    at = lowered.find(b"\r\ncontent-length:")
    return int(lowered[at + 17 :].split(b"\r\n", 1)[0]) if at >= 0 else 0


async def main(port: int) -> None:
    server = await asyncio.get_running_loop().create_server(Instant, "127.0.0.1", port, backlog=1024)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(main(int(sys.argv[1])))
