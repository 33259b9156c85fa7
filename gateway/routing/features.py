"""Features of a request, read in microseconds, in any language. Pure; knows no model and no threshold.

Signs, digits and shapes instead of word lists: a list of English words would send the same question in Spanish to
another model. The system prompt is never read: it belongs to the application, not to the task.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from math import log2

from gateway.flow.values import ChatRequest, CompletionRequest, ModelRequest

MAX_CHARS = 3000
"""Read at most this much of the newest turns: half of it from each end."""
EARLIER_WEIGHT = 0.5
"""How much a trait of the turn before still counts: "now do it in Rust" is as hard as what it refers to."""
TURNS_READ = 4

MATHS_MARKS = (
    *("\\frac", "\\sqrt", "\\sum", "\\int", "\\lim", "\\begin", "\\left", "\\cdot", "\\mathbb"),
    *(
        "^",
        " = ",
        " + ",
        " * ",
        " / ",
        " < ",
        " > ",
        "f(",
        "g(",
        "O(",
        "(x",
        "²",
        "³",
        "≤",
        "≥",
        "≠",
        "≈",
        "√",
        "∑",
        "∫",
    ),
    *("∂", "∞", "∈", "∀", "∃", "⇒", "→", "π", "±", "×", "÷"),
)
CODE_MARKS = (
    *("```", "()", "=>", "->", "::", "==", "!=", "&&", "||", "+=", "</", "{\n", ";\n", "_", "self.", "#include"),
    *("def ", "fn ", "const ", "\nclass ", "\nimport ", "\n    return", "SELECT ", "CREATE TABLE", "0x", "[i]"),
)
# Names, and stems that technical prose shares across European languages; not a list of English words.
NAMES = frozenset(
    (
        *("python", "java", "javascript", "typescript", "rust", "golang", "c++", "c#", "sql", "html", "css", "bash"),
        *("regex", "json", "yaml", "docker", "kubernetes", "complexity", "complejidad", "complexidade"),
        *("probability", "probabilidad", "probabilidade"),
    )
)
STEMS = frozenset(
    (
        *("algor", "recur", "integ", "deriv", "teore", "theor", "matri", "polin", "polyn", "ecuac", "equat"),
        *("demos", "demon", "hipot", "hypot"),
    )
)
_WORD = re.compile(r"[^\W\d_]{3,}|c\+\+|c#")
_LIST_ITEM = re.compile(r"(?:^\s*[-*•]|(?:^|\s)\(?\d{1,2}[.)])\s", re.MULTILINE)
_NUMBER = re.compile(r"\d+(?:[.,]\d+)*")


@dataclass(frozen=True, slots=True)
class Features:
    """All about 0 to 1, so that weights can be compared; 1 is "a lot"."""

    length: float = 0.0
    code: float = 0.0
    maths: float = 0.0
    technical: float = 0.0
    numbers: float = 0.0
    constraints: float = 0.0
    questions: float = 0.0
    turns: float = 0.0
    tools: float = 0.0
    structured: float = 0.0

    def as_mapping(self) -> Mapping[str, float]:
        """For the route plan and the audit record."""
        return {name: round(value, 4) for name, value in asdict(self).items()}


def features_of(request: ModelRequest) -> Features:
    """Traits of the newest user turns, older ones fading; for completions of the prompt."""
    turns = user_turns(request)
    recent = turns[: -TURNS_READ - 1 : -1] or [""]
    weight, found = 1.0, Features()
    for text in recent:
        seen = _traits(_clip(text))
        found = Features(
            length=max(found.length, weight * seen.length),
            code=max(found.code, weight * seen.code),
            maths=max(found.maths, weight * seen.maths),
            technical=max(found.technical, weight * seen.technical),
            numbers=max(found.numbers, weight * seen.numbers),
            constraints=max(found.constraints, weight * seen.constraints),
            questions=max(found.questions, weight * seen.questions),
        )
        weight *= EARLIER_WEIGHT
    return Features(
        length=found.length,
        code=found.code,
        maths=found.maths,
        technical=found.technical,
        numbers=found.numbers,
        constraints=found.constraints,
        questions=found.questions,
        turns=_part(len(turns) - 1, 6),
        tools=float(isinstance(request, ChatRequest) and any(m.role == "tool" for m in request.messages)),
        structured=float(request.params.grammar is not None),
    )


def user_turns(request: ModelRequest) -> list[str]:
    """What the user has written, the newest last."""
    match request:
        case ChatRequest(messages=messages):
            return [text for m in messages if m.role == "user" and (text := "\n".join(m.texts))]
        case CompletionRequest():
            return list(request.texts)
        case _:
            return []


def _traits(text: str) -> Features:
    lines = text.count("\n")
    commas = text.count(",") + text.count(";") + text.count(":")
    return Features(
        # 0 below 32 characters, 1 from 4,096 on: doubling the text adds the same everywhere.
        length=min(1.0, max(0.0, (log2(len(text) + 1) - 5) / 7)),
        code=_part(sum([text.count(mark) for mark in CODE_MARKS]), 6),
        maths=_part(sum([text.count(mark) for mark in MATHS_MARKS]), 5),
        technical=_part(_technical(text), 2),
        numbers=_part(len(_NUMBER.findall(text)), 8),
        constraints=_part(2 * len(_LIST_ITEM.findall(text)) + commas + lines / 2, 16),
        questions=_part(text.count("?"), 4),
    )


def _technical(text: str) -> int:
    words = set(_WORD.findall(text.lower()))
    return len(words & NAMES) + len({word[:5] for word in words} & STEMS)


def _part(count: float, enough: float) -> float:
    return min(1.0, max(0.0, count / enough))


def _clip(text: str) -> str:
    if len(text) <= MAX_CHARS:
        return text
    half = MAX_CHARS // 2
    return text[:half] + "\n" + text[-half:]
