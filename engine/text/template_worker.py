"""The child process in which chat templates run: it compiles one template, then renders one conversation a message.

A template is a program that came with the model file. Here it can use no more processor time and memory than the parent
allows, whatever it does in one C call: the kernel ends the process (setitimer(2), setrlimit(2)). Run as a file in
isolated mode; imports jinja2 and the standard library only. A request is a 4-byte length and JSON; a reply a 4-byte
length, `TEXT` or `REFUSAL`, and UTF-8 (with lone surrogates), so that the parent never parses what a template wrote.
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
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

LENGTH = struct.Struct("<I")
TEXT, REFUSAL = b"T", b"R"
MOST_CHARACTERS = 8 << 20
"""Of one conversation: twice what the largest request holds."""


class Refused(TemplateError):
    """The template called `raise_exception`."""


class Arguments(dict[str, Any]):
    """Of a call: an object to templates that expect one, JSON to those that add it to a text."""

    def __str__(self) -> str:
        return _to_json(self)

    def __add__(self, text: str) -> str:
        return str(self) + text

    def __radd__(self, text: str) -> str:
        return text + str(self)


class GenerationTag(Extension):
    """`{% generation %}...{% endgeneration %}` marks what an assistant wrote, for training; the text stays as it is."""

    tags = {"generation"}  # noqa: RUF012 - as jinja2 declares it

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        body: list[nodes.Node] = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return body


class Renderer:
    """The template environment of Hugging Face's `apply_chat_template`."""

    def __init__(self, source: str) -> None:
        """Raises whatever jinja2 raises for a template that cannot be compiled."""
        self._source, self._now = source, datetime.fromtimestamp(0, UTC)
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, GenerationTag]
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _raise
        environment.globals["strftime_now"] = lambda form: self._now.strftime(form)
        self._template = environment.from_string(source)

    def render(self, request: dict[str, Any]) -> str:
        self._now = datetime.fromisoformat(request.pop("now"))
        tools, extra = request.pop("tools", None), request.pop("extra", {})
        for message in request["messages"]:
            for call in message.get("tool_calls") or ():
                if isinstance(call["function"].get("arguments"), dict):
                    call["function"]["arguments"] = Arguments(call["function"]["arguments"])
        return self._template.render(**extra, tools=tools or None, documents=None, **request)

    def own_words(self, error: Refused) -> str:
        """The refusal where it stands in the template as it is: anything else may repeat what somebody wrote."""
        message = error.message or ""
        return message if message and len(message) <= 300 and message in self._source else "it does not take them"


def answer(renderer: Renderer, request: dict[str, Any]) -> tuple[bytes, str]:
    """(`TEXT`, the prompt) or (`REFUSAL`, why the template does not take this conversation)."""
    try:
        text = renderer.render(request)
    except Refused as error:
        return REFUSAL, renderer.own_words(error)
    except SecurityError:
        return REFUSAL, "it does something unsafe"
    except MemoryError:
        raise
    except Exception as error:  # noqa: BLE001 - the template is a stranger's program
        return REFUSAL, f"it fails with {type(error).__name__}"
    if len(text) > MOST_CHARACTERS:
        return REFUSAL, f"it writes more than {MOST_CHARACTERS} characters"
    return TEXT, text


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
                kind, text = TEXT, ""
            else:
                kind, text = answer(renderer, message)
        except MemoryError:
            sys.exit("out of memory")
        except Exception as error:  # noqa: BLE001 - compiling a stranger's program
            kind, text = REFUSAL, f"{type(error).__name__}: {error}"[:300]
        data = text.encode("utf-8", "surrogatepass")
        signal.setitimer(signal.ITIMER_PROF, 0.0)
        sink.write(LENGTH.pack(len(data)) + kind + data)
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
    raise Refused(message)


def main(arguments: Sequence[str]) -> None:
    serve(float(arguments[0]), int(arguments[1]), sys.stdin.buffer, sys.stdout.buffer)


if __name__ == "__main__":
    main(sys.argv[1:])
