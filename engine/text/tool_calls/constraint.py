"""A grammar for answers that must call a function with arguments that follow its schema, in the model's own format.

Pure: Lark as llguidance reads it. Marks that a vocabulary has as control tokens are matched by their ids, since no text
ever becomes one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from engine.errors import InvalidGrammar
from engine.text.json_schemas import unsupported_keyword, without_unknown_formats
from engine.text.tool_calls.registry import CallFormat

WHITESPACE = r"[ \n\t]{0,8}"
"""Bounded, because small models like to fill an unbounded gap for ever."""
ANY_OBJECT: Mapping[str, Any] = {"type": "object"}
ControlToken = Callable[[str], int | None]
"""The id of a text that the vocabulary has as a control token."""


@dataclass(frozen=True, slots=True)
class Function:
    name: str
    parameters: Mapping[str, Any] | None = None
    """A JSON Schema of the arguments; None: any object."""


@dataclass(frozen=True, slots=True)
class CallConstraint:
    """What an answer may call. `required`: it is calls and nothing else; otherwise it may also be text, or JSON that
    follows `answer`."""

    functions: Sequence[Function]
    required: bool
    parallel: bool = True
    answer: Mapping[str, Any] | None = None


def lark_of(constraint: CallConstraint, form: CallFormat, control: ControlToken) -> str:
    """Raises `InvalidGrammar` naming the tool and the place in its schema where it is one that is not supported."""
    schemas = [_schema(index, function) for index, function in enumerate(constraint.functions)]
    pairs = list(zip(constraint.functions, schemas, strict=True))
    rules = _rules(form.opening, "call", pairs, form, control)
    head, tail = _terms(form.head, form, control), _terms(form.tail, form, control)
    more = f"({_terms(form.separator, form, control)} call)*" if constraint.parallel and not form.one_call else ""
    rules.append(f"calls: {head} call {more} {tail}")
    mark = next((mark for mark in form.marks if (form.head + form.opening).startswith(mark)), None)
    if constraint.required:
        start = ["start: calls"]
    elif constraint.answer is not None:
        start = ["start: calls | answer", f"answer: %json {_json(_flexible(constraint.answer))}"]
    elif mark is None:
        # Calls stand at the beginning, so what begins otherwise is text to its end.
        start = ["start: calls | OTHER", r"OTHER: /([^{](.|\n)*)?/"]
    elif control(mark) is not None:
        start = ["start: TEXT calls?", r"TEXT: /(.|\n)*/"]
    else:
        # The mark is text: where it has come, the rest of a call must follow.
        rules += _rules((form.head + form.opening)[len(mark) :], "marked", pairs, form, control)
        start = [
            f"start: TEXT | before marked {more} {tail}",
            f"before[lazy]: TEXT {json.dumps(mark, ensure_ascii=False)}",
            r"TEXT: /(.|\n)*/",
        ]
    return "\n".join(["%llguidance {}", *start, *rules]) + "\n"


def _rules(
    opening: str, name: str, pairs: Sequence[tuple[Function, Any]], form: CallFormat, control: ControlToken
) -> list[str]:
    """The rule of a call, one alternative for each function."""
    called = [_called(function, schema, form, control) for function, schema in pairs]
    first, last = _terms(opening, form, control), _terms(form.closing, form, control)
    alternatives = [f"{name}_{index}: {first} {call} {last}" for index, call in enumerate(called)]
    return [f"{name}: {' | '.join(f'{name}_{index}' for index in range(len(called)))}", *alternatives]


def _schema(index: int, function: Function) -> dict[str, Any]:
    schema = dict(ANY_OBJECT if function.parameters is None else function.parameters)
    schema.setdefault("type", "object")
    place = f"tools.{index}.function.parameters"
    path = unsupported_keyword(schema)
    if path is not None:
        raise InvalidGrammar(place, path, f"uses `{path[:200]}`, which is not supported", hint="leave that keyword out")
    return without_unknown_formats(schema)


def _called(function: Function, schema: Mapping[str, Any], form: CallFormat, control: ControlToken) -> str:
    if form.arguments_key is None:
        middle = _terms(form.middle, form, control)
        return f"{json.dumps(function.name)} {middle} %json {_json(_flexible(schema))}"
    key = form.arguments_key
    whole = {
        "type": "object",
        "properties": {"name": {"const": function.name}, key: _within(schema, f"#/properties/{key}")},
        "required": ["name", key],
        "additionalProperties": False,
    }
    return f"%json {_json(_flexible(whole))}"


def _within(schema: Any, place: str) -> Any:
    """The schema as a part of another: its references begin at its own place."""
    if isinstance(schema, dict):
        return {
            name: place + value[1:] if _is_own_place(name, value) else _within(value, place)
            for name, value in schema.items()
        }
    return [_within(value, place) for value in schema] if isinstance(schema, list) else schema


def _is_own_place(name: str, value: Any) -> bool:
    return name == "$ref" and isinstance(value, str) and value.startswith("#")


def _flexible(schema: Mapping[str, Any]) -> dict[str, Any]:
    return {**schema, "x-guidance": {"whitespace_pattern": WHITESPACE}}


def _json(value: Mapping[str, Any]) -> str:
    return json.dumps(value, ensure_ascii=False)


def _terms(text: str, form: CallFormat, control: ControlToken) -> str:
    """A text as terms of a rule: marks that are control tokens by id, all else as it is."""
    parts = re.split("(" + "|".join(map(re.escape, form.marks)) + ")", text) if form.marks else [text]
    terms, plain = list[str](), ""
    for part in parts:
        token = control(part) if part in form.marks else None
        if token is None:
            plain += part
            continue
        terms += [json.dumps(plain, ensure_ascii=False)] if plain else []
        terms.append(f"<[{token}]>")
        plain = ""
    return " ".join([*terms, *([json.dumps(plain, ensure_ascii=False)] if plain else [])])
