"""Structured output through llguidance: compiles a `Grammar` into a matcher that masks tokens. Fails closed.

Compiling runs outside the step loop with limits on size, parser work and time (the caller's executor). Anything that
cannot be compiled is `InvalidGrammar`; a matcher that breaks while running is an `EngineFault` of its request.
"""

from __future__ import annotations

import json
import re
import threading
from collections import OrderedDict
from collections.abc import Callable
from time import thread_time
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.errors import EngineError, EngineFault, InvalidGrammar
from engine.ports import TokenizerPort
from engine.requests import Grammar
from engine.text.json_schemas import overlapping_one_of, unsupported_keyword, without_unknown_formats
from engine.text.regex_classes import ascii_classes
from engine.text.tool_calls.constraint import MAX_CALLS_CHARS, place_of

MAX_GRAMMAR_CHARS = 65_536
MAX_REGEX_CHARS = 4_096
MAX_CHOICES = 1_024
MAX_SCHEMA_DEPTH = 64
MAX_PATH_CHARS = 200
MAX_LEXER_FUEL = 1_000_000
MAX_LEXER_STATES = 50_000
MAX_STEP_FUEL = 100_000
MAX_GRAMMAR_SIZE = 200_000
MAX_STEP_S = 0.5
"""CPU time of the engine thread: a machine that stands still is nobody's fault."""
_TOO_MUCH = ("too many", "too large", "too big", "fuel", "limit", "exceed")
"""What llguidance says of a grammar that is beyond a limit."""
_KEPT = 64
_PROBE_TOKENS = 4
_WHITESPACE = r"[ \n\t]{0,8}"
"""Bounded, because small models like to fill an unbounded gap for ever."""


class GrammarMatcher:
    """The state of one choice. Not thread-safe; `copy` gives another choice its own state.

    A step of it that takes longer than `MAX_STEP_S` is refused too: the loop serves others.
    """

    def __init__(self, matcher: Any, kind: str = "grammar") -> None:
        self._matcher, self._kind = matcher, kind

    @property
    def is_terminated(self) -> bool:
        """Nothing but the end may follow."""
        return bool(self._matcher.is_stopped())

    def fill_bitmask(self, row: NDArray[np.int32]) -> None:
        """Set bit `id` of int32 `row` [ceil(vocab / 32)] where token `id` may come next.

        Raises `InvalidGrammar` where it became too complex, `EngineFault` where the library broke.
        """
        started = thread_time()
        mask = np.frombuffer(_contained(self._matcher.compute_bitmask), dtype=np.int32)
        if self._matcher.is_error() or thread_time() - started > MAX_STEP_S:
            raise self._broken()
        shared = min(len(mask), len(row))
        row[:shared] = mask[:shared]
        row[shared:] = 0

    def accept(self, token_id: int) -> None:
        """Advance by the token that was drawn. Raises as `fill_bitmask`, and when the token is not allowed."""
        if self._matcher.is_stopped() and not self._matcher.is_error():
            return
        started = thread_time()
        if not _contained(self._matcher.consume_token, token_id) or thread_time() - started > MAX_STEP_S:
            raise self._broken()

    def copy(self) -> GrammarMatcher:
        return GrammarMatcher(self._matcher.deep_copy(), self._kind)

    def _broken(self) -> EngineError:
        """A step that took too long or beyond a limit is the grammar's doing; a token that was not allowed is ours."""
        message = str(self._matcher.get_error() or "").lower()
        if message and not any(word in message for word in _TOO_MUCH):
            return EngineFault("the grammar refused a token", hint="simplify the schema or grammar")
        limit = "became too complex while it was followed"
        hint = "simplify it: fewer nested repeats and alternatives"
        return InvalidGrammar(f"grammar.{self._kind}", self._kind, limit, hint=hint)


class GrammarCompiler:
    """Compiles and remembers. Thread-safe; llguidance releases the GIL while it builds."""

    def __init__(self, tokenizer: TokenizerPort) -> None:
        self._tokenizer = tokenizer
        self._lock = threading.Lock()
        self._compiled: OrderedDict[str, GrammarMatcher] = OrderedDict()

    def compile(self, grammar: Grammar) -> GrammarMatcher:
        """A fresh matcher. Raises `InvalidGrammar` naming what was refused."""
        source = to_source(grammar)
        with self._lock:
            known = self._compiled.get(source)
            if known is not None:
                self._compiled.move_to_end(source)
                return known.copy()
        matcher = self._build(grammar, source)
        with self._lock:
            self._compiled[source] = matcher
            if len(self._compiled) > _KEPT:
                self._compiled.popitem(last=False)
            return matcher.copy()

    def _build(self, grammar: Grammar, source: str) -> GrammarMatcher:
        from llguidance import LLMatcher, LLParserLimits

        limits = LLParserLimits(
            initial_lexer_fuel=MAX_LEXER_FUEL,
            max_lexer_states=MAX_LEXER_STATES,
            max_grammar_size=MAX_GRAMMAR_SIZE,
            step_lexer_fuel=MAX_STEP_FUEL,
        )
        matcher = LLMatcher(self._tokenizer.llguidance(), source, log_level=0, limits=limits)
        error = matcher.get_error() or _probe(matcher)
        if error:
            refused = _refused(grammar.type, len(source), error)
            if grammar.type == "tool_calls":
                raise _naming_the_tool(str(grammar.value), refused)
            raise _naming_the_keyword(grammar, refused) if grammar.type == "json_schema" else refused
        return GrammarMatcher(matcher, grammar.type)


def _naming_the_keyword(grammar: Grammar, refused: InvalidGrammar) -> InvalidGrammar:
    """The same refusal with the place in the schema, where it is a keyword that is not supported."""
    schema = _load_schema(grammar.value)
    path = unsupported_keyword(schema) if "Unimplemented" in refused.detail else None
    if path is None and refused.detail.startswith("oneOf"):
        path = overlapping_one_of(schema)
    if path is None:
        return refused
    limit = f"uses `{path[:MAX_PATH_CHARS]}`, which is not supported"
    return InvalidGrammar(refused.field, refused.value, limit, hint="leave that keyword out", detail=refused.detail)


def _naming_the_tool(source: str, refused: InvalidGrammar) -> InvalidGrammar:
    """The same refusal with the tool whose schema it is, where the error tells the line of its rule."""
    line = re.match(r"at (\d+)\(", refused.detail)
    rules = source.splitlines()
    place = None if line is None or int(line[1]) > len(rules) else place_of(rules[int(line[1]) - 1])
    if place is None:
        return refused
    overlap = "uses `oneOf` with alternatives that overlap, which is not supported"
    limit = overlap if "oneOf" in refused.detail else refused.limit
    return InvalidGrammar(place, refused.value, limit, hint=refused.hint, detail=refused.detail)


def _probe(matcher: Any) -> str:
    """Walk a few tokens on copies, so that what explodes at the first step explodes here and not in the loop."""
    for pick in (0, -1):
        walker = matcher.deep_copy()
        for _ in range(_PROBE_TOKENS):
            mask = np.frombuffer(walker.compute_bitmask(), dtype=np.uint8)
            allowed = np.flatnonzero(np.unpackbits(mask, bitorder="little"))
            if walker.is_stopped() or not len(allowed):
                break
            walker.consume_token(int(allowed[pick]))
        if walker.is_error():
            return str(walker.get_error())
    return ""


def to_source(grammar: Grammar) -> str:
    """llguidance's own grammar text. Raises `InvalidGrammar` for what is malformed or over a size limit. Pure."""
    from llguidance import LLMatcher

    value = grammar.value
    match grammar.type:
        case "json_object":
            return _schema_source({"type": "object"})
        case "json_schema":
            return _schema_source(without_unknown_formats(_load_schema(value)))
        case "regex":
            return str(LLMatcher.grammar_from_regex(ascii_classes(_text("regex", value, MAX_REGEX_CHARS))))
        case "choice":
            return str(LLMatcher.grammar_from_lark(_choice_lark(value)))
        case "tool_calls":
            return str(LLMatcher.grammar_from_lark(_text("tool_calls", value, MAX_CALLS_CHARS)))
        case "grammar":
            return str(LLMatcher.grammar_from_lark(_as_lark(_text("grammar", value, MAX_GRAMMAR_CHARS))))
    raise InvalidGrammar("grammar.type", grammar.type, "is not a kind of grammar")


def _schema_source(schema: dict[str, Any]) -> str:
    from llguidance import LLMatcher

    try:
        return str(LLMatcher.grammar_from_json_schema(schema, overrides={"whitespace_pattern": _WHITESPACE}))
    except ValueError as error:
        raise InvalidGrammar("grammar.json_schema", len(str(error)), "is not a JSON schema that can be used") from None


def _load_schema(value: Any) -> dict[str, Any]:
    field = "grammar.json_schema"
    if isinstance(value, str):
        try:
            value = json.loads(_text("json_schema", value, MAX_GRAMMAR_CHARS))
        except (ValueError, RecursionError):
            raise InvalidGrammar(field, type(value).__name__, "is not valid JSON") from None
    if not isinstance(value, dict):
        raise InvalidGrammar(field, type(value).__name__, "must be a JSON object")
    check_depth(field, value)
    try:
        size = len(json.dumps(value))
    except (TypeError, ValueError, RecursionError):
        raise InvalidGrammar(field, "object", "holds something that is not JSON") from None
    if size > MAX_GRAMMAR_CHARS:
        raise InvalidGrammar(field, size, f"may have at most {MAX_GRAMMAR_CHARS} characters")
    return value


def check_depth(field: str, value: Any) -> None:
    """Raises `InvalidGrammar` for what nests deeper than `MAX_SCHEMA_DEPTH`, without recursion; a cycle does too."""
    level, depth = [value], 0
    while level:
        if depth > MAX_SCHEMA_DEPTH:
            limit = f"may nest at most {MAX_SCHEMA_DEPTH} levels"
            raise InvalidGrammar(field, f"over {MAX_SCHEMA_DEPTH} levels", limit)
        children: list[Any] = []
        for item in level:
            if isinstance(item, dict | list | tuple):
                inside = item.values() if isinstance(item, dict) else item
                children.extend(v for v in inside if isinstance(v, dict | list | tuple))
        level, depth = children[: MAX_GRAMMAR_CHARS + 1], depth + 1


def is_unicode(text: str) -> bool:
    """False for half of a surrogate pair, which is no character: neither tokenizers nor grammars can read it."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _choice_lark(value: Any) -> str:
    field = "grammar.choice"
    if not isinstance(value, list | tuple) or not all(isinstance(v, str) and v for v in value):
        raise InvalidGrammar(field, type(value).__name__, "must be a list of non-empty strings")
    if not 0 < len(value) <= MAX_CHOICES:
        raise InvalidGrammar(field, len(value), f"must hold 1 to {MAX_CHOICES} strings")
    total = sum(len(choice) for choice in value)
    if total > MAX_GRAMMAR_CHARS:
        raise InvalidGrammar(field, total, f"may have at most {MAX_GRAMMAR_CHARS} characters in all")
    if not all(map(is_unicode, value)):
        raise InvalidGrammar(field, len(value), "holds half of a surrogate pair")
    return "start: " + " | ".join(json.dumps(choice) for choice in value)


def _as_lark(text: str) -> str:
    """GBNF-style EBNF (`root ::= ...`) is translated; anything else is taken as Lark."""
    if "::=" not in text:
        return text
    from llguidance.gbnf_to_lark import any_to_lark

    try:
        return str(any_to_lark(text))
    except Exception as error:  # noqa: BLE001 - the converter raises whatever its parser meets; all of it is bad input
        raise _refused("grammar", len(text), str(error)) from None


def _text(kind: str, value: Any, most: int) -> str:
    if not isinstance(value, str) or not value:
        raise InvalidGrammar(f"grammar.{kind}", type(value).__name__, "must be a non-empty string")
    if len(value) > most:
        raise InvalidGrammar(f"grammar.{kind}", len(value), f"may have at most {most} characters")
    if not is_unicode(value):
        raise InvalidGrammar(f"grammar.{kind}", len(value), "holds half of a surrogate pair")
    return value


def _contained(call: Callable[..., Any], *arguments: Any) -> Any:
    """A panic of the library is no `Exception`; it is a fault of this request."""
    try:
        return call(*arguments)
    except (Exception, KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:
        raise EngineFault("the grammar broke while it was used", hint="simplify the schema or grammar") from error


_KINDS = (
    ("names a type that does not exist", ("invalid type",)),
    ("uses a feature that is not supported", ("unimplemented", "not supported", "unsupported", "unknown format")),
    ("refers to something that does not exist", ("does not exist", "not found", "unknown name", "unresolved")),
    ("contradicts itself: nothing can match it", ("unsatisfiable", "noextension")),
    ("is too complex", _TOO_MUCH),
    ("holds an invalid pattern", ("regex parse error", "invalid regex")),
    ("is not valid", ("",)),
)


def _refused(kind: str, size: int, message: str) -> InvalidGrammar:
    """The kind of problem in our words. llguidance's quote the caller's text: they are `detail`, for the log."""
    lines = message.strip().splitlines() or [""]
    # A pattern's own error stands on a later line than the pattern; the parser's state after it says nothing.
    shortened = re.sub(r'"(?:[^"\\]|\\.)*"?', "", lines[0]).lower() + " ".join(
        line for line in lines[1:] if line.startswith("error:")
    )
    problem = next(text for text, marks in _KINDS if any(mark in shortened for mark in marks))
    return InvalidGrammar(f"grammar.{kind}", size, problem, detail=lines[0][:160])
