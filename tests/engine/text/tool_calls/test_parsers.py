# ruff: noqa: E501 - one case a line
"""Calls in the text of each family of models: read whole and in pieces cut anywhere; what is no call is kept as text."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from time import thread_time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.text.tool_calls.deepseek import MarkedCalls
from engine.text.tool_calls.harmony import Channels
from engine.text.tool_calls.leading import LeadingCalls
from engine.text.tool_calls.mistral import MistralCalls
from engine.text.tool_calls.pieces import AnswerParser, CallArguments, CallBegin, Piece, Reasoning, Text
from engine.text.tool_calls.tagged import TaggedCalls
from engine.text.tool_calls.thinking import Thinking

LIMA = CallBegin(0, "clima"), CallArguments(0, '{"ciudad": "Lima {x}"}')
QUITO = CallBegin(1, "reloj"), CallArguments(1, "{}")
ONE = '{"name": "clima", "arguments": {"ciudad": "Lima {x}"}}'
TWO = '{"name": "reloj", "arguments": {}}'
AS = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
A, S, E = "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"
FENCED = f'{AS[0]}{A}function{S}clima\n```json\n{{"ciudad": "Lima {{x}}"}}\n```{E}\n{A}function{S}reloj\n```json\n{{}}\n```{E}{AS[1]}'
BARE = f'{AS[0]}{A}clima{S}{{"ciudad": "Lima {{x}}"}}{E}{A}reloj{S}{{}}{E}{AS[1]}'
HARMONY = (
    "<|channel|>analysis<|message|>Miro.<|end|><|start|>assistant<|channel|>commentary to=functions.clima "
    '<|constrain|>json<|message|>{"ciudad": "Lima {x}"}<|call|>'
)


def hermes() -> AnswerParser:
    return TaggedCalls()


def offered() -> AnswerParser:
    return LeadingCalls(lambda calls: TaggedCalls(first=calls), ("clima", "reloj"))


def thinking() -> AnswerParser:
    return Thinking(TaggedCalls())


CASES: list[tuple[Callable[[], AnswerParser], str, tuple[Piece, ...]]] = [
    (hermes, f"<tool_call>\n{ONE}\n</tool_call>", LIMA),
    (hermes, f"Voy.\n<tool_call>\n{ONE}\n</tool_call>\n<tool_call>{TWO}</tool_call>", (Text("Voy."), *LIMA, *QUITO)),
    (hermes, f"<tool_call>{ONE}</tool_call>\nListo.", (*LIMA, Text("\nListo."))),
    (hermes, '<tool_call>{"arguments": {"a": 1}, "name": "f"}</tool_call>', (CallBegin(0, "f"), CallArguments(0, '{"a": 1}'))),
    (hermes, '<tool_call>{"name": "f", "arguments": "{\\"a\\": 1}"}</tool_call>', (CallBegin(0, "f"), CallArguments(0, '{"a": 1}'))),
    (hermes, '<tool_call>{"name": "f"}</tool_call>', (CallBegin(0, "f"),)),
    (hermes, '<tool_call>{"name": "f", "arguments": null}</tool_call>', (CallBegin(0, "f"), CallArguments(0, "{}"))),
    (hermes, '<tool_call>{"name": "f", "arguments": {"a": [1, "}"', (CallBegin(0, "f"), CallArguments(0, '{"a": [1, "}"'))),
    (hermes, "<tool_call>no es JSON</tool_call>", (Text("<tool_call>no es JSON</tool_call>"),)),
    (hermes, f'<tool_call>{{"x": 1}}</tool_call> y <tool_call>{ONE}</tool_call>', (Text('<tool_call>{"x": 1}</tool_call> y'), *LIMA)),
    (hermes, "un <tool y <tool_cal", (Text("un <tool y <tool_cal"),)),
    (hermes, "solo texto \n", (Text("solo texto \n"),)),
    (LeadingCalls, ONE.replace("arguments", "parameters"), LIMA),
    (LeadingCalls, f"<|python_tag|>{ONE}; {TWO}", (*LIMA, *QUITO)),
    (LeadingCalls, f"Claro: {ONE}", (Text(f"Claro: {ONE}"),)),
    (LeadingCalls, '{"respuesta": 7} y más', (Text('{"respuesta": 7} y más'),)),
    (LeadingCalls, "{no", (Text("{no"),)),
    (offered, f"```json\n{ONE}\n```", LIMA),
    (offered, f"```json\n{ONE}\n```\n```json\n{TWO}\n```\n", (*LIMA, *QUITO)),
    (offered, f"{ONE}\n<tool_call>\n{TWO}\n</tool_call>", (*LIMA, *QUITO)),
    (offered, f"<tool_call>{ONE}</tool_call>", LIMA),
    (offered, '{"name": "otra", "arguments": {}}', (Text('{"name": "otra", "arguments": {}}'),)),
    (offered, "```json\n[1, 2]\n```", (Text("```json\n[1, 2]\n```"),)),
    (offered, "```python\nprint(1)\n```", (Text("```python\nprint(1)\n```"),)),
    (offered, "`x`", (Text("`x`"),)),
    (offered, "``", (Text("``"),)),
    (MistralCalls, f"[TOOL_CALLS][{ONE}, {TWO}]", (*LIMA, *QUITO)),
    (MistralCalls, f"[TOOL_CALLS] [{ONE}]", LIMA),
    (MistralCalls, 'Voy[TOOL_CALLS]clima[ARGS]{"ciudad": "Lima {x}"}[TOOL_CALLS]reloj[CALL_ID]a[ARGS]{}', (Text("Voy"), *LIMA, *QUITO)),
    (MistralCalls, "[TOOL_CALLS][1]", (Text("[TOOL_CALLS][1]"),)),
    (MistralCalls, '[TOOL_CALLS][{"x": 1}] fin', (Text('[TOOL_CALLS][{"x": 1}] fin'),)),
    (MarkedCalls, f"Voy.\n{FENCED}", (Text("Voy."), *LIMA, *QUITO)),
    (MarkedCalls, BARE, (*LIMA, *QUITO)),
    (MarkedCalls, f"{A}{E}nada", (Text(f"{A}nada"),)),
    (Channels, HARMONY, (Reasoning("Miro."), *LIMA)),
    (Channels, "<|channel|>final<|message|>Hola", (Text("Hola"),)),
    (Channels, "<|channel|>commentary<|message|>Miro.<|end|><|start|>assistant<|channel|>final<|message|>Ya.<|return|>", (Text("Miro.Ya."),)),
    (Channels, "sin canales", (Text("sin canales"),)),
    (thinking, f"<think>\nPienso <b>.\n</think>\n\n<tool_call>{ONE}</tool_call>", (Reasoning("Pienso <b>."), *LIMA)),
    (thinking, "<think>\n\n</think>\n\nHola", (Text("Hola"),)),
    (thinking, "Sin <think>pensar</think>", (Text("Sin <think>pensar</think>"),)),
    (lambda: Thinking(TaggedCalls(), begun=True), "Sigo.\n</think>\nHola", (Reasoning("Sigo."), Text("Hola"))),
    (lambda: Thinking(TaggedCalls(), begun=True), "Sigo sin fin", (Reasoning("Sigo sin fin"),)),
]  # fmt: skip


def joined(pieces: Iterable[Piece]) -> tuple[Piece, ...]:
    found = list[Piece]()
    for piece in pieces:
        last = found[-1] if found else None
        if isinstance(piece, Text) and isinstance(last, Text):
            found[-1] = Text(last.text + piece.text)
        elif isinstance(piece, Reasoning) and isinstance(last, Reasoning):
            found[-1] = Reasoning(last.text + piece.text)
        elif isinstance(piece, CallArguments) and isinstance(last, CallArguments) and last.call == piece.call:
            found[-1] = CallArguments(last.call, last.text + piece.text)
        else:
            found.append(piece)
    return tuple(found)


def read(parser: AnswerParser, feeds: Iterable[str]) -> tuple[Piece, ...]:
    pieces = [piece for feed in feeds for piece in parser.feed(feed)]
    assert all(getattr(piece, "text", "x") for piece in pieces), "no empty pieces"
    return joined([*pieces, *parser.finish()])


@pytest.mark.parametrize(("make", "text", "pieces"), CASES)
def test_the_calls_of_a_text_are_read(make: Callable[[], AnswerParser], text: str, pieces: tuple[Piece, ...]) -> None:
    assert read(make(), [text]) == pieces


@pytest.mark.parametrize(("make", "text", "pieces"), CASES)
def test_a_text_that_comes_sign_by_sign_is_read_the_same(
    make: Callable[[], AnswerParser], text: str, pieces: tuple[Piece, ...]
) -> None:
    assert read(make(), text) == pieces


MAKERS = [hermes, LeadingCalls, offered, MistralCalls, MarkedCalls, Channels, thinking]
WORDS = [
    "<tool_call>", "</tool_call>", ONE, TWO, "[TOOL_CALLS]", "[ARGS]", "clima", "{", "}", '"', ",", "[", "]", "\n", " ", "x",
    *AS, A, S, E, "function", "```json", "```", "<|python_tag|>", ";", "<think>", "</think>", "<|channel|>", "<|message|>",
    "<|end|>", "<|start|>", "assistant", "analysis", "final", "commentary to=functions.clima", "\\", "7",
]  # fmt: skip


@settings(max_examples=4000, deadline=None)
@given(st.data(), st.sampled_from(MAKERS), st.lists(st.sampled_from(WORDS), max_size=14))
def test_however_a_text_is_cut_the_pieces_are_the_same(
    data: st.DataObject, make: Callable[[], AnswerParser], words: list[str]
) -> None:
    text = "".join(words)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    feeds = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    whole = read(make(), [text])
    assert read(make(), feeds) == whole
    assert read(make(), text) == whole


@settings(max_examples=4000, deadline=None)
@given(st.sampled_from([hermes, LeadingCalls, offered, MistralCalls]), st.lists(st.sampled_from(WORDS), max_size=14))
def test_what_is_no_call_is_text_to_its_last_sign(make: Callable[[], AnswerParser], words: list[str]) -> None:
    """White space around a mark that begins no call may go."""
    text = "".join(words)
    pieces = read(make(), [text])
    if not any(isinstance(piece, CallBegin) for piece in pieces):
        assert "".join("".join(piece.text.split()) for piece in pieces if isinstance(piece, Text)) == "".join(
            text.split()
        )


def test_a_call_is_told_while_it_grows() -> None:
    parser = TaggedCalls()
    assert parser.feed('<tool_call>{"name": "f", "argu') == [CallBegin(0, "f")]
    assert parser.feed('ments": {"a": ') == [CallArguments(0, '{"a": ')]
    assert parser.feed("1}}") == [CallArguments(0, "1}")]


GAPS = [
    "",
    "{",
    '{"name": "f", ',
    "<tool_call>",
    "<tool_call>{",
    "[TOOL_CALLS]",
    "[TOOL_CALLS][{",
    "```json\n",
    AS[0],
    "<think>",
]


@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize("sign", ["\n", " ", "<", "a", AS[0], "[TOOL_CALLS]"])
def test_a_model_that_never_ends_a_gap_holds_nobody_up(make: Callable[[], AnswerParser], sign: str) -> None:
    """A token costs no more for all that came before it; the text is longer than any answer of the demo."""
    for gap in GAPS:
        parser, started = make(), thread_time()
        parser.feed(gap)
        for _ in range(4_000):
            parser.feed(sign)
        parser.finish()
        assert thread_time() - started < 2.0, gap
