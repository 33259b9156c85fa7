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


class Instant(asyncio.Protocol):
    """Answers each complete request with the same bytes."""

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
            self._buffer = self._buffer[size:]
            self._transport.write(FRAME)


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
