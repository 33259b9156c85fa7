"""A grammar for answers that must call a function with arguments that follow its schema, in the model's own format.

Pure: Lark as llguidance reads it. Marks that a vocabulary has as control tokens are matched by their ids, since no text
ever becomes one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from engine.errors import InvalidGrammar
from engine.text.json_schemas import unsupported_keyword, without_unknown_formats
from engine.text.tool_calls.leading import PYTHON_TAG
from engine.text.tool_calls.registry import CallFormat
from engine.text.tool_calls.thinking import CLOSING as THINK_END
from engine.text.tool_calls.thinking import OPENING as THINK

WHITESPACE = r"[ \n\t]{0,8}"
"""Bounded, because small models like to fill an unbounded gap for ever."""
MAX_CALLS_CHARS = 262_144
"""Of the grammar of all functions together."""
ANY_OBJECT: Mapping[str, Any] = {"type": "object"}
ControlToken = Callable[[str], int | None]
"""The id of a text that the vocabulary has as a control token."""
Thought = Literal["none", "may", "begun"]
"""Whether reasoning comes before the answer: never, if the model likes, or the prompt has begun it."""
RULE, PLACE = "function_", "tools.{}.function.parameters"
GAP = r"gap: /\n{0,2}/"
FENCED, FENCE_END, NEWLINE = "```json\n", "\n```", "\n"


@dataclass(frozen=True, slots=True)
class Function:
    name: str
    parameters: Mapping[str, Any] | None = None
    """A JSON Schema of the arguments; None: any object."""
    position: int | None = None
    """Among the tools of the request, for errors; None: its place in the constraint."""


@dataclass(frozen=True, slots=True)
class CallConstraint:
    """What an answer may call. `required`: it is calls and nothing else; otherwise it may also be text, or JSON that
    follows `answer`. Reasoning before it is free."""

    functions: Sequence[Function]
    required: bool
    parallel: bool = True
    answer: Mapping[str, Any] | None = None


def lark_of(constraint: CallConstraint, form: CallFormat, control: ControlToken, thought: Thought = "none") -> str:
    """Raises `InvalidGrammar` naming the tool and the place in its schema where it is one that is not supported.

    What the form's parser would read as a call is either one of the grammar's calls or not in its texts.
    """
    called, size = dict[str, str](), 0
    for index, function in enumerate(constraint.functions):
        position = index if function.position is None else function.position
        call = called[f"{RULE}{position}"] = _called(function, _schema(position, function), form, control)
        size += len(call)
        if size > MAX_CALLS_CHARS:
            limit = f"may have at most {MAX_CALLS_CHARS} characters in all"
            raise InvalidGrammar("grammar.tool_calls", size, limit, hint="offer fewer tools, or smaller schemas")
    rules = [f"function: {' | '.join(called)}", *[f"{name}: {call}" for name, call in called.items()]]
    several = constraint.parallel and not form.one_call
    more = f"({_terms(form.separator, form, control)} call)*" if several else ""
    closing, tail = _terms(form.closing, form, control), _terms(form.tail, form, control)
    rules.append(f"call: {_terms(form.opening, form, control)} function {closing}")
    rules.append(f"calls: {_terms(form.head, form, control)} call {more} {tail}")
    if constraint.required:
        rules.append("body: calls")
    elif constraint.answer is not None:
        rules += ["body: calls | answer", f"answer: %json {_json(_flexible(constraint.answer))}"]
    else:
        rules += _free(form, control, several, f"function {closing} {more} {tail}")
    return "\n".join(["%llguidance {}", *_start(thought, control), *rules]) + "\n"


def _free(form: CallFormat, control: ControlToken, several: bool, rest: str) -> list[str]:
    """Text that may end in calls. `rest`: of the calls, behind what opens the first."""
    rules = [f"TEXT: /(.|\\n)*/{''.join([f' & ~/{pattern}/' for pattern in _read_as_calls(form)])}"]
    opening = form.head + form.opening
    mark = next((mark for mark in form.marks if opening.startswith(mark)), None)
    if mark is None:
        body = ["TEXT"]
    elif control(mark) is not None:
        body = ["TEXT calls?"]
    else:
        # The mark is text: where it has come, the rest of a call must follow.
        body = ["TEXT", "before marked"]
        rules += [
            f"before[lazy]: /(.|\\n)*/ {_text(mark)}",
            f"marked: {_terms(opening[len(mark) :], form, control)} {rest}",
        ]
    if form.leads:
        body.append("leading")
        lead = f"<[{control(PYTHON_TAG)}]>? " if control(PYTHON_TAG) is not None else ""
        fenced = f"{_text(FENCED)} function {_text(FENCE_END)}"
        more = f"({_terms(form.separator, form, control)} function)*" if several else ""
        more_fenced = f"({_text(NEWLINE)} {fenced})*" if several else ""
        rules.append(f"leading: {lead}function {more} | {fenced} {more_fenced}")
    return [f"body: {' | '.join(body)}", *rules]


def _read_as_calls(form: CallFormat) -> list[str]:
    """Patterns of texts in which the form's parser sees calls."""
    marks = "|".join([_literal(mark) for mark in form.marks])
    found = [rf"(.|\n)*({marks})(.|\n)*"] if form.marks else []
    if form.leads:
        found.append(r"[ \t\r\n]*(```json[^\n]{0,16}\n|(```[^\n]{0,21}\n[ \t\r\n]*)?\{)(.|\n)*")
    return found


def _start(thought: Thought, control: ControlToken) -> list[str]:
    if thought == "none":
        return ["start: body"]
    opening, closing = control(THINK), control(THINK_END)
    rest = (
        [f"thought: THOUGHT <[{closing}]>", f"THOUGHT: /(.|\\n)*/ & ~/(.|\\n)*{_literal(THINK_END)}(.|\\n)*/"]
        if closing is not None
        else [rf"thought[lazy]: /(.|\n)*{_literal(THINK_END)}/"]
    )
    if thought == "begun":
        return ["start: thought gap body", *rest, GAP]
    opened = f"<[{opening}]>" if opening is not None else _text(THINK)
    return [f"start: ({opened} thought gap)? body", *rest, GAP]


def _schema(index: int, function: Function) -> dict[str, Any]:
    schema = dict(ANY_OBJECT if function.parameters is None else function.parameters)
    schema.setdefault("type", "object")
    place = PLACE.format(index)
    path = unsupported_keyword(schema)
    if path is not None:
        raise InvalidGrammar(place, path, f"uses `{path[:200]}`, which is not supported", hint="leave that keyword out")
    return without_unknown_formats(schema)


def place_of(rule: str) -> str | None:
    """Which tool's schema a line of the grammar has."""
    found = re.match(rf"{RULE}(\d+):", rule)
    return None if found is None else PLACE.format(found[1])


def _called(function: Function, schema: Mapping[str, Any], form: CallFormat, control: ControlToken) -> str:
    if form.arguments_key is None:
        middle = _terms(form.middle, form, control)
        return f"{_text(function.name)} {middle} %json {_json(_flexible(schema))}"
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
        terms += [_text(plain)] if plain else []
        terms.append(f"<[{token}]>")
        plain = ""
    return " ".join([*terms, *([_text(plain)] if plain else [])])


def _text(value: str) -> str:
    return json.dumps(value, ensure_ascii=False)


def _literal(text: str) -> str:
    """As a pattern between slashes."""
    return re.escape(text).replace("/", r"\/")
