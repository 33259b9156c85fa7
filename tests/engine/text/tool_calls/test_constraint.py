"""Answers that a grammar of calls allows, walked at random for every family of models: what its parser reads in them
are calls of the tools that were offered, with arguments that follow their schemas, however the answer goes."""

from __future__ import annotations

import json
from functools import cache
from random import Random
from typing import Any

import numpy as np
import pytest
from jsonschema import Draft202012Validator
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from engine.errors import InvalidGrammar
from engine.text.grammar import GrammarCompiler, GrammarMatcher
from engine.text.tokenizer import ChatTokenizer
from engine.text.tool_calls.constraint import MAX_CALLS_CHARS, CallConstraint, Function
from engine.text.tool_calls.pieces import CallArguments, CallBegin, Reasoning, Text
from engine.text.tool_calls.registry import FORMATS
from engine.text.vocabulary import BYTE_SIGNS, Vocabulary
from gateway.backends.engine_values import as_gateway_error

EOS = 256
WEATHER: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"enum": ["Lima", "Köln"]}, "days": {"$ref": "#/$defs/days"}},
    "required": ["city", "days"],
    "additionalProperties": False,
    "$defs": {"days": {"type": "integer", "minimum": 1, "maximum": 9}},
}
CLOCK: dict[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}
TOOLS = {"weather": WEATHER, "clock.now": CLOCK}
FUNCTIONS = [Function(name, schema) for name, schema in TOOLS.items()]
PIECES = (
    *(
        "{",
        "}",
        '"',
        ":",
        ",",
        "\n",
        "```",
        "json",
        "[",
        "]",
        "name",
        "arguments",
        "parameters",
        "weather",
        "clock.now",
    ),
    *(
        "tool",
        "_call",
        "<tool_call>",
        "TOOL_CALLS",
        "<",
        ">",
        "/",
        "|",
        "hola",
        ' "',
        "function",
        "city",
        "days",
        "Lima",
    ),
)
"""Text that a model has as one token each, so that walks meet the texts that matter."""


@cache
def tokenizer_of(calls: str, *, with_marks: bool = True, thinks: bool = False) -> ChatTokenizer:
    """Bytes, `PIECES` and the marks of the family, as tokens of their own or not."""
    tokenizer = Tokenizer(models.BPE(vocab={sign: byte for byte, sign in enumerate(BYTE_SIGNS)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    marks = list(FORMATS[calls].marks) if with_marks else []
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in ("<eos>", *marks)])
    plain = [text for text in PIECES if text not in marks and not (text.startswith("<") and text.endswith(">"))]
    added = [*plain, *(["<think>", "</think>"] if thinks and with_marks else [])]
    tokenizer.add_tokens([AddedToken(text, special=False, normalized=False) for text in added])
    special = frozenset(range(EOS, EOS + 1 + len(marks)))
    return ChatTokenizer(
        Vocabulary(tokenizer, True, frozenset({EOS}), None, special, None),
        tokenizer.get_vocab_size(),
        tool_call_parser=calls,
        reasoning_parser="qwen3" if thinks else "none",
    )


def walked(
    tokenizer: ChatTokenizer, matcher: GrammarMatcher, seed: int, most: int = 400, begin: str = ""
) -> str | None:
    """An answer of tokens that are allowed, drawn at random; None where it is not at its end after `most`. It goes as
    `begin` as far as that is allowed."""
    draw, row = Random(seed), np.zeros((tokenizer.vocab_size + 31) // 32, dtype=np.int32)
    ids, beginning = list[int](), tokenizer.encode(begin)
    while len(ids) < most:
        matcher.fill_bitmask(row)
        allowed = np.flatnonzero(np.unpackbits(row.view(np.uint8), bitorder="little")[: tokenizer.vocab_size])
        if beginning and beginning[0] in allowed:
            ids.append(beginning.pop(0))
            matcher.accept(ids[-1])
            continue
        beginning = []
        # Ends, and tokens of several characters, are drawn more often than their share.
        large = [int(i) for i in allowed if i >= EOS]
        token = draw.choice(large) if large and draw.random() < 0.6 else int(draw.choice(allowed))
        if token == EOS:
            return tokenizer.decode(ids)
        ids.append(token)
        matcher.accept(token)
        if matcher.is_terminated:
            return tokenizer.decode(ids)
    return None


def read(tokenizer: ChatTokenizer, text: str, prompt: tuple[int, ...] = ()) -> tuple[list[tuple[str, Any]], str, str]:
    """The calls, the text and the reasoning of an answer."""
    parser = tokenizer.answer_parser(prompt, tools=tuple(TOOLS), constrained=False)
    assert parser is not None
    calls, said, thought = list[list[str]](), "", ""
    for piece in [*parser.feed(text), *parser.finish()]:
        match piece:
            case CallBegin(name=name):
                calls.append([name, ""])
            case CallArguments(call=call, text=more):
                calls[call][1] += more
            case Text(text=more):
                said += more
            case Reasoning(text=more):
                thought += more
    return [(name, json.loads(arguments)) for name, arguments in calls], said, thought


def answers(
    tokenizer: ChatTokenizer,
    constraint: CallConstraint,
    count: int = 60,
    prompt: tuple[int, ...] = (),
    begins: tuple[str, ...] = ("",),
) -> list[tuple[list[tuple[str, Any]], str, str]]:
    compiler, grammar = GrammarCompiler(tokenizer), tokenizer.call_grammar(constraint, prompt)
    walks = [(seed, begin) for seed in range(count // len(begins)) for begin in begins]
    texts = [walked(tokenizer, compiler.compile(grammar), seed, begin=begin) for seed, begin in walks]
    found = [read(tokenizer, text, prompt) for text in texts if text is not None]
    assert len(found) > count // 4, "most walks come to an end"
    return found


def require_valid(calls: list[tuple[str, Any]]) -> None:
    for name, arguments in calls:
        Draft202012Validator(TOOLS[name]).validate(arguments)


FAMILIES = [
    pytest.param(name, marks, id=f"{name}-{'tokens' if marks else 'text'}")
    for name in FORMATS
    for marks in (True, False)
]


@pytest.mark.parametrize(("calls", "marks"), FAMILIES)
def test_an_answer_that_must_call_is_calls_and_nothing_else(calls: str, marks: bool) -> None:
    found = answers(tokenizer_of(calls, with_marks=marks), CallConstraint(FUNCTIONS, required=True))
    for made, said, _ in found:
        assert made
        assert not said.strip()
        require_valid(made)
    assert {name for made, _, _ in found for name, _ in made} == set(TOOLS)
    assert any(len(made) > 1 for made, _, _ in found) or FORMATS[calls].one_call


@pytest.mark.parametrize(("calls", "marks"), FAMILIES)
def test_an_answer_that_may_call_once_is_text_or_one_call_by_its_schema(calls: str, marks: bool) -> None:
    form = FORMATS[calls]
    opening = form.head + form.opening
    begins = ("", opening, f"Voy. {opening}", "{", "```json\n{", '\n{"name"', "```python\n{", f"{form.marks[0]}{{")
    found = answers(
        tokenizer_of(calls, with_marks=marks),
        CallConstraint(FUNCTIONS, required=False, parallel=False),
        200,
        (),
        begins,
    )
    assert any(not made and said for made, said, _ in found)
    assert any(made and not said for made, said, _ in found)
    assert any(made and said for made, said, _ in found) or calls == "llama3_json"
    for made, _, _ in found:
        assert len(made) <= 1
        require_valid(made)


@pytest.mark.parametrize("marks", [True, False])
@pytest.mark.parametrize("calls", ["hermes", "llama3_json"])
def test_a_model_that_thinks_may_do_so_before_it_must_call(calls: str, marks: bool) -> None:
    tokenizer = tokenizer_of(calls, with_marks=marks, thinks=True)
    must = CallConstraint(FUNCTIONS, required=True)
    found = answers(
        tokenizer, must, 100, (), ("", "<think>\nMiro <b>.", "<think>\nYa.\n</think>\n\n", "<think></think>")
    )
    assert any(thought.startswith("Ya.") for _, _, thought in found)
    assert any(not thought for _, _, thought in found)
    ends = ("Ya.\n</think>\n\n", "Ya.</think>")
    begun = answers(tokenizer, must, 60, tuple(tokenizer.encode("<think>\n")), ends)
    ended = answers(tokenizer, must, 60, tuple(tokenizer.encode("</think>\n\n")), ends)
    assert all(thought.startswith("Ya.") for _, _, thought in begun)
    assert not any(thought for _, _, thought in ended)
    for made, said, _ in [*found, *begun, *ended]:
        assert made
        assert not said.strip()
        require_valid(made)


def test_an_answer_beside_calls_follows_the_schema_that_was_asked_for_it() -> None:
    schema = {"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"], "additionalProperties": False}
    constraint = CallConstraint(FUNCTIONS, required=False, answer=schema)
    found = answers(tokenizer_of("hermes"), constraint, 100, (), ("", "<tool_call>"))
    assert {json.dumps(json.loads(said)) for made, said, _ in found if not made} == {'{"a": 1}', '{"a": 2}'}
    assert any(made for made, _, _ in found)
    for made, _, _ in found:
        require_valid(made)


@pytest.mark.parametrize("calls", FORMATS)
def test_a_keyword_that_is_not_supported_is_named_with_its_tool(calls: str) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "array", "uniqueItems": True}}}
    functions = [*FUNCTIONS, Function("odd", schema)]
    with pytest.raises(InvalidGrammar) as refused:
        tokenizer_of(calls).call_grammar(CallConstraint(functions, required=True))
    assert refused.value.field == "tools.2.function.parameters"
    assert "properties.*.uniqueItems" in refused.value.limit


@pytest.mark.parametrize(
    ("schema", "problem"),
    [
        ({"type": "string", "pattern": "(["}, "invalid pattern"),
        ({"$ref": "#/nowhere"}, "does not exist"),
        ({"type": "nonsense"}, "type that does not exist"),
        ({"oneOf": [{"type": "string"}, {"type": "string", "maxLength": 3}]}, "`oneOf` with alternatives that overlap"),
    ],
)
def test_a_schema_that_cannot_be_compiled_is_named_with_its_place_among_the_tools(
    schema: dict[str, Any], problem: str
) -> None:
    tokenizer, odd = tokenizer_of("hermes"), {"type": "object", "properties": {"a": schema}}
    functions = [FUNCTIONS[0], Function("odd", odd, position=7)]
    with pytest.raises(InvalidGrammar) as refused:
        GrammarCompiler(tokenizer).compile(tokenizer.call_grammar(CallConstraint(functions, required=True)))
    public = as_gateway_error(refused.value)
    assert (public.code, public.param) == ("invalid_grammar", "tools.7.function.parameters")
    assert problem in public.message


def test_schemas_that_are_too_large_together_are_refused_before_all_are_written() -> None:
    large = {"type": "object", "properties": {f"p{index}": {"type": "string"} for index in range(2_000)}}
    with pytest.raises(InvalidGrammar) as refused:
        tokenizer_of("hermes").call_grammar(CallConstraint([Function(f"f{n}", large) for n in range(256)], True))
    assert refused.value.field == "grammar.tool_calls"
    assert as_gateway_error(refused.value).param == "tools"
    assert isinstance(refused.value.value, int)
    assert refused.value.value < 2 * MAX_CALLS_CHARS
