"""Problems of a policy document, with their places. Knows nothing of what a valid document means."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from gateway.documents.located_yaml import Location, Path
from gateway.errors import ConfigError

Kind = Literal[
    "unknown_field",
    "invalid",
    "failing_test",
    "dead_pattern",
    "shadowed",
    "empty_role",
    "own_gain",
    "unpriced",
    "no_model_use",
    "department",
    "other",
]


@dataclass(frozen=True, slots=True)
class Problem:
    """One finding. `kind` tells an API client unknown fields (422 `unknown_field`) from the rest."""

    message: str
    location: Location | None = None
    path: Path = ()
    hint: str | None = None
    severity: Literal["error", "warning"] = "error"
    kind: Kind = "invalid"

    @property
    def pointer(self) -> str:
        """`rules[3].models.ids[0]`"""
        text = ""
        for part in self.path:
            text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else str(part)
        return text

    @property
    def sentence(self) -> str:
        """Without a file and a line: for a log or a panel."""
        return f"{self.message} ({self.hint})" if self.hint else self.message

    def render(self, file: str) -> str:
        where = f"{file}:{self.location.line}:{self.location.column}" if self.location else file
        pointer = f"`{self.pointer}`: " if self.path else ""
        warning = "warning: " if self.severity == "warning" else ""
        return f"{where}: {warning}{pointer}{self.message}" + (f"\n  hint: {self.hint}" if self.hint else "")


def warning(message: str, path: Path, kind: Kind, hint: str | None = None) -> Problem:
    return Problem(message, None, path, hint, "warning", kind)


class PolicyInvalid(ConfigError):
    """A document that cannot be used. `problems` holds all that was found; `str()` shows the first."""

    def __init__(self, problems: Sequence[Problem], file: str) -> None:
        self.problems = tuple(problems)
        first = self.problems[0]
        message = f"`{first.pointer}`: {first.message}" if first.path else first.message
        if len(self.problems) > 1:
            message += f" (and {len(self.problems) - 1} more)"
        super().__init__(
            message,
            file=file,
            line=first.location.line if first.location else None,
            column=first.location.column if first.location else None,
            hint=first.hint,
        )


def listed(names: Iterable[str], limit: int = 12) -> str:
    items = [f"`{name}`" for name in names]
    more = f" and {len(items) - limit} more" if len(items) > limit else ""
    return ", ".join(items[:limit]) + more
