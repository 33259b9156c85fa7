"""The child process in which chat templates run: it compiles one template, then renders one conversation a message.

A template is a program that came with the model file. Here it can use no more processor time and memory than the parent
allows, whatever it does in one C call: the kernel ends the process (setitimer(2), setrlimit(2)). Run as a file in
isolated mode; imports jinja2 and the standard library only. Messages: a 4-byte length, then JSON, both ways.
"""

from __future__ import annotations

import json
import resource
import signal
import struct
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, BinaryIO, NoReturn

from jinja2 import TemplateError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

LENGTH = struct.Struct("<I")


class GenerationTag(Extension):
    """`{% generation %}...{% endgeneration %}` marks what an assistant wrote, for training; the text stays as it is."""

    tags = {"generation"}  # noqa: RUF012 - as jinja2 declares it

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        body: list[nodes.Node] = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return body


class Renderer:
    """What Hugging Face's `apply_chat_template` offers to a template."""

    def __init__(self, source: str) -> None:
        """Raises whatever jinja2 raises for a template that cannot be compiled."""
        self._now = datetime.fromtimestamp(0, UTC)
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, GenerationTag]
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _raise
        environment.globals["strftime_now"] = lambda form: self._now.strftime(form)
        self._template = environment.from_string(source)

    def render(self, request: dict[str, Any]) -> str:
        self._now = datetime.fromisoformat(request.pop("now"))
        return self._template.render(tools=None, documents=None, **request)


def answer(renderer: Renderer, request: dict[str, Any]) -> dict[str, str]:
    """`text`, or `refusal`: why the template does not take this conversation."""
    try:
        return {"text": renderer.render(request)}
    except TemplateError as error:
        return {"refusal": error.message or type(error).__name__}
    except MemoryError:
        raise
    except Exception as error:  # noqa: BLE001 - the template is a stranger's program
        return {"refusal": f"it fails with {type(error).__name__}"}


def serve(cpu_s: float, memory_bytes: int, source: BinaryIO, sink: BinaryIO) -> None:
    """Until `source` ends. Each message, the template itself too, may take `cpu_s` of processor time."""
    resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    renderer: Renderer | None = None
    while (message := _read(source)) is not None:
        signal.setitimer(signal.ITIMER_PROF, cpu_s)
        try:
            if renderer is None:
                renderer = Renderer(message["template"])
                reply = {"text": ""}
            else:
                reply = answer(renderer, message)
            data = json.dumps(reply).encode()
        except MemoryError:
            sys.exit("out of memory")
        except Exception as error:  # noqa: BLE001 - compiling a stranger's program
            data = json.dumps({"refusal": f"{type(error).__name__}: {error}"[:300]}).encode()
        signal.setitimer(signal.ITIMER_PROF, 0.0)
        sink.write(LENGTH.pack(len(data)) + data)
        sink.flush()


def _read(source: BinaryIO) -> dict[str, Any] | None:
    head = source.read(LENGTH.size)
    if len(head) < LENGTH.size:
        return None
    found: dict[str, Any] = json.loads(source.read(*LENGTH.unpack(head)))
    return found


def _to_json(value: Any, indent: int | None = None) -> str:
    """Not jinja's own filter: that one escapes HTML."""
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _raise(message: str) -> NoReturn:
    raise TemplateError(message)


def main(arguments: Sequence[str]) -> None:
    serve(float(arguments[0]), int(arguments[1]), sys.stdin.buffer, sys.stdout.buffer)


if __name__ == "__main__":
    main(sys.argv[1:])
