"""How often a model's tool calls can be used: 200 questions, free and constrained, each judged by its tool's schema.

    python -m benchmarks.tool_calls PATH [PATH ...] [--questions 200]

PATH is a model's folder or GGUF file. The model is offered eight tools and asked for something that one of them does;
sampling is greedy. `free`: it writes what it likes (`tool_choice: auto`). `strict`: it may answer in words, but a call
follows its schema (`auto` with `strict` tools). `required`: it must call. Prints JSON.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import cycle, islice
from pathlib import Path
from typing import Any, Literal

from jsonschema import Draft202012Validator

from engine import (
    CallArguments,
    CallBegin,
    CallConstraint,
    EngineConfig,
    Function,
    GenerationRequest,
    Grammar,
    LLMEngine,
    SamplingParams,
)
from engine.text.tokenizer import ChatTokenizer

Mode = Literal["free", "strict", "required"]
MODES: tuple[Mode, ...] = ("free", "strict", "required")
MAX_TOKENS = 160


@dataclass(frozen=True, slots=True)
class Tool:
    name: str
    description: str
    properties: Mapping[str, Any]
    optional: tuple[str, ...] = ()
    questions: tuple[str, ...] = ()
    """With places for what is asked about."""

    @property
    def schema(self) -> dict[str, Any]:
        return {
            "type": "object",
            "properties": dict(self.properties),
            "required": [name for name in self.properties if name not in self.optional],
            "additionalProperties": False,
        }

    @property
    def as_told(self) -> dict[str, Any]:
        function = {"name": self.name, "description": self.description, "parameters": self.schema}
        return {"type": "function", "function": function}


def _enum(*values: str) -> dict[str, Any]:
    return {"type": "string", "enum": list(values)}


def _within(least: int, most: int) -> dict[str, Any]:
    return {"type": "integer", "minimum": least, "maximum": most}


TEXT, NUMBER, COUNT = {"type": "string"}, {"type": "number"}, {"type": "integer", "minimum": 1}
TOOLS = (
    Tool(
        "get_weather",
        "Current weather of a city",
        {"city": TEXT, "unit": _enum("celsius", "fahrenheit")},
        questions=("What is the weather in {place}, in celsius?", "¿Qué tiempo hace en {place}? En fahrenheit."),
    ),
    Tool(
        "convert_currency",
        "Convert an amount of money",
        {"amount": NUMBER, "source": _enum("EUR", "USD", "GBP", "JPY"), "target": _enum("EUR", "USD", "GBP", "JPY")},
        questions=("How many dollars are {number} euros?", "Convert {number}.50 GBP to JPY."),
    ),
    Tool(
        "create_event",
        "Put an event into the calendar",
        {
            "title": TEXT,
            "date": {"type": "string", "format": "date", "description": "YYYY-MM-DD"},
            "attendees": {"type": "array", "items": TEXT, "maxItems": 8},
        },
        optional=("attendees",),
        questions=(
            "Create an event called Review on 2026-03-{day} with Ana and {person}.",
            "Put 'Dentist' into my calendar on 2026-07-{day}.",
        ),
    ),
    Tool(
        "search_flights",
        "Flights between two cities",
        {
            "route": {
                "type": "object",
                "properties": {"origin": TEXT, "destination": TEXT},
                "required": ["origin", "destination"],
                "additionalProperties": False,
            },
            "passengers": COUNT,
        },
        questions=(
            "Flights from Madrid to {place} for {few} people?",
            "Find a flight from {place} to Quito for one person.",
        ),
    ),
    Tool(
        "send_email",
        "Send an email",
        {"to": {"type": "string", "format": "email"}, "subject": TEXT, "body": TEXT},
        questions=(
            "Email {person}@example.com that the meeting is moved to {few} pm.",
            'Send a mail to {person}@example.org with the subject "Hola" and the text "¿Vienes a {place}?"',
        ),
    ),
    Tool(
        "set_alarm",
        "Set an alarm",
        {"hour": _within(0, 23), "minute": _within(0, 59)},
        questions=("Wake me at {few}:{day}.", "Set an alarm for {few}:30 in the morning."),
    ),
    Tool(
        "search_orders",
        "Orders of a customer",
        {"customer": TEXT, "status": _enum("open", "paid", "shipped"), "limit": COUNT},
        optional=("status", "limit"),
        questions=("Show the {few} newest open orders of {person}.", "Which orders of {person} have been shipped?"),
    ),
    Tool(
        "translate",
        "Translate a text",
        {"text": TEXT, "target_language": _enum("es", "en", "fr", "de")},
        questions=('Translate "good morning, {person}" to Spanish.', 'How do you say "a house in {place}" in German?'),
    ),
)  # fmt: skip
PLACES = ("Lima", "Bogotá", "Paris", "New York", "Köln", "São Paulo", "Tokyo")
PEOPLE = ("luis", "marta", "john", "aïcha", "wei")
VALIDATORS = {tool.name: Draft202012Validator(tool.schema) for tool in TOOLS}


@dataclass(frozen=True, slots=True)
class Row:
    model: str
    mode: Mode
    questions: int
    called: int
    """Answers with at least one call."""
    parsed: int
    """Answers that call, and the arguments of all of whose calls are JSON objects."""
    named: int
    """Of these, all call a tool that was offered."""
    valid: int
    """Of these, the arguments of all calls follow their schemas."""
    intended: int
    """Of these, the first call is of the tool that the question was written for."""
    cut: int
    """Answers that reached the most tokens."""
    seconds: float


def questions(count: int) -> Iterator[tuple[str, str]]:
    """(the tool it was written for, the question), each with other fillings."""
    for number, tool in enumerate(islice(cycle(TOOLS), count)):
        turn = number // len(TOOLS)
        filled = tool.questions[turn % len(tool.questions)].format(
            place=PLACES[turn % len(PLACES)],
            person=PEOPLE[turn % len(PEOPLE)],
            number=3 + 7 * turn,
            few=2 + turn % 7,
            day=10 + turn % 18,
        )
        yield tool.name, filled


def read(tokenizer: ChatTokenizer, prompt: Sequence[int], text: str, constrained: bool) -> list[tuple[str, str]]:
    """The calls of an answer: (name, arguments)."""
    parser = tokenizer.answer_parser(prompt, tools=tuple(VALIDATORS), constrained=constrained)
    assert parser is not None
    calls = list[tuple[str, str]]()
    for piece in [*parser.feed(text), *parser.finish()]:
        match piece:
            case CallBegin(name=name):
                calls.append((name, ""))
            case CallArguments(call=call, text=more):
                calls[call] = (calls[call][0], calls[call][1] + more)
    return calls


def judged(calls: Sequence[tuple[str, str]], intended: str) -> tuple[bool, bool, bool, bool, bool]:
    """Whether it calls, the arguments are objects, the names are known, the schemas hold, the tool is the right one."""
    if not calls:
        return False, False, False, False, False
    try:
        parsed = [(name, json.loads(arguments)) for name, arguments in calls]
    except ValueError:
        return True, False, False, False, False
    if not all(isinstance(arguments, dict) for _, arguments in parsed):
        return True, False, False, False, False
    if not all(name in VALIDATORS for name, _ in parsed):
        return True, True, False, False, False
    if not all(VALIDATORS[name].is_valid(arguments) for name, arguments in parsed):
        return True, True, True, False, False
    return True, True, True, True, parsed[0][0] == intended


def grammar_of(tokenizer: ChatTokenizer, mode: Mode) -> Grammar | None:
    if mode == "free":
        return None
    functions = [Function(tool.name, tool.schema) for tool in TOOLS]
    return tokenizer.call_grammar(CallConstraint(functions, required=mode == "required", parallel=False))


def measured(name: str, engine: LLMEngine, mode: Mode, asked: Sequence[tuple[str, str]]) -> Row:
    tokenizer = engine.tokenizer
    assert isinstance(tokenizer, ChatTokenizer)
    told = [tool.as_told for tool in TOOLS]
    prompts = [
        tuple(tokenizer.apply_chat_template([{"role": "user", "content": question}], tools=told))
        for _, question in asked
    ]
    sampling = SamplingParams(
        max_tokens=MAX_TOKENS,
        temperature=0.0,
        grammar=grammar_of(tokenizer, mode),
        shown_token_ids=tokenizer.mark_token_ids,
    )
    started = time.perf_counter()
    answers = engine.generate([GenerationRequest(f"{mode}-{i}", ids, sampling) for i, ids in enumerate(prompts)])
    seconds = time.perf_counter() - started
    found = []
    for (intended, _), prompt, answer in zip(asked, prompts, answers, strict=True):
        if answer.error is not None:
            raise answer.error
        calls = read(tokenizer, prompt, answer.choices[0].text, mode != "free")
        found.append(judged(calls, intended))
    called, parsed, named, valid, right = (sum(column) for column in zip(*found, strict=True))
    cut = sum(answer.choices[0].finish_reason == "length" for answer in answers)
    return Row(name, mode, len(asked), called, parsed, named, valid, right, cut, round(seconds, 1))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", type=Path, nargs="+")
    parser.add_argument("--questions", type=int, default=200)
    chosen = parser.parse_args()
    asked = list(questions(chosen.questions))
    rows = []
    for path in chosen.models:
        engine = LLMEngine(EngineConfig(str(path), device="cpu", max_model_len=2048, max_num_seqs=32))
        try:
            for mode in MODES:
                rows.append(measured(path.stem, engine, mode, asked))
                print(rows[-1], file=sys.stderr, flush=True)
        finally:
            engine.close()
    json.dump([asdict(row) for row in rows], sys.stdout, indent=1)
    print()


if __name__ == "__main__":
    main()
