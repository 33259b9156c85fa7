"""Structured logs on stderr: one JSON object a line, with secrets scrubbed whatever the caller did.

Configured once by `serve`; everything else uses the standard `logging` names below `esclusa`. Prompts and answers are
never given to a logger; the scrubber is the second line of defense, for tokens and keys inside other texts.
"""

from __future__ import annotations

import json
import logging
import re
import sys
import unicodedata
from collections.abc import MutableMapping
from typing import Any, TextIO

import structlog

from gateway.settings import LogSettings

_SECRETS = re.compile(
    r"eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]*\.?[A-Za-z0-9_-]*"  # JWT
    r"|(?i:bearer)\s+[^\s,;\"']{8,}"
    r"|\bsk-[A-Za-z0-9_-]{8,}"
    r"|(?<=://)[^/\s:@]+:[^/\s@]+(?=@)"  # user:password of a URL
)
MASK = "[redacted]"
_PLAIN = re.compile(r"[ -~]*\Z")
_UNSHOWN = frozenset({"Cc", "Cf", "Zl", "Zp", "Cs", "Co", "Cn"})
"""Unicode categories that JSON leaves as they are, though a terminal obeys them, a reader of lines breaks there, or
they change how the rest of the line is shown (bidirectional and other format controls, unassigned code points)."""


def scrub(text: str) -> str:
    """Replace what looks like a token, a key or a URL's password."""
    return _SECRETS.sub(MASK, text)


def configure_logs(settings: LogSettings, stream: TextIO | None = None) -> None:
    """Route all logging to one handler on `stream` (stderr). Idempotent: replaces the handlers that are there."""
    out = stream if stream is not None else sys.stderr
    plain = settings.format == "console" or (settings.format == "auto" and out.isatty())
    renderer: Any = (
        structlog.dev.ConsoleRenderer(colors=out.isatty())
        if plain
        else structlog.processors.JSONRenderer(_one_line, ensure_ascii=False)
    )
    before: list[Any] = [
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.ExtraAdder(),
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    after: list[Any] = [
        structlog.stdlib.ProcessorFormatter.remove_processors_meta,
        *([] if plain else [structlog.processors.format_exc_info]),
        _scrub_event,
        renderer,
    ]
    handler = logging.StreamHandler(out)
    handler.setFormatter(structlog.stdlib.ProcessorFormatter(foreign_pre_chain=before, processors=after))
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(settings.level.upper())
    for name in ("uvicorn", "uvicorn.error", "uvicorn.access"):
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [], name != "uvicorn.access"
    logging.getLogger("uvicorn.error").setLevel("WARNING")
    for name in ("httpx2", "httpcore2", "asyncio", "sqlalchemy", "alembic"):
        logging.getLogger(name).setLevel("WARNING")


def _one_line(event: Any, **options: Any) -> str:
    line = json.dumps(event, **options)
    return line if _PLAIN.match(line) else "".join(map(_shown, line))


def _shown(sign: str) -> str:
    if unicodedata.category(sign) not in _UNSHOWN:
        return sign
    return json.dumps(sign)[1:-1] if sign > "\x7f" else f"\\u{ord(sign):04x}"


def _scrub_event(_: Any, __: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    for key, value in event.items():
        if isinstance(value, str):
            event[key] = scrub(value)
    return event
