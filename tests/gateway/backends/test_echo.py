"""The prompt before an answer: what each of its tokens stands for, in which order it leaves, and how much of it may."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.backends.echo import PIECE, EchoedAnswer, shown_alone, shown_in
from gateway.backends.engine_values import MOST_PROMPT_LOGPROBS, require_bounded_evidence
from gateway.errors import InvalidRequest
from gateway.flow.values import (
    Chunk,
    GenerationParams,
    PromptLogprobs,
    TokenLogprob,
    Usage,
)
from tests.fakes.byte_tokenizer import ByteTokenizer
from tests.fakes.chunks import heard, said

PARAMS = GenerationParams(max_tokens=2, echo=True, logprobs=True, top_logprobs=1)


@pytest.mark.parametrize(
    ("text", "raws", "special", "expected"),
    [
        ("Hola mundo", [b"Hola", b" mundo"], [False, False], [b"Hola", b" mundo"]),
        ("Hola", [b"<s>", b" Hola"], [True, False], [b"", b"Hola"]),
        ("<s>Hola", [b"<s>", b"Hola"], [True, False], [b"<s>", b"Hola"]),
        ("<s>Hola", [b"<s>", b"<s>", b"Hola"], [True, True, False], [b"<s>", b"", b"Hola"]),
        ("\ufb01n", [b"fi", b"n"], [False, False], ["\ufb01n".encode()[:2], "\ufb01n".encode()[2:]]),
    ],
    ids=["exact", "added by a template", "written by the caller", "both", "normalized"],
)
def test_the_tokens_of_a_text_stand_for_all_of_it(
    text: str, raws: list[bytes], special: list[bool], expected: list[bytes]
) -> None:
    assert shown_in(text.encode(), raws, special) == expected
    assert b"".join(expected) == text.encode()


@given(st.lists(st.binary(min_size=1, max_size=4), min_size=1, max_size=8))
def test_tokens_alone_stand_for_the_text_that_they_decode_to(raws: list[bytes]) -> None:
    shown = shown_alone(raws)
    assert len(shown) == len(raws)
    text = b"".join(raws).decode("utf-8", "replace")
    assert b"".join(shown).decode("utf-8", "replace") == text
    # A continuation byte of the answer begins a character of its own.
    assert (b"".join(shown) + b"\xbc").decode("utf-8", "replace") == text + "\ufffd"


def value(token: int, logprob: float = -1.0) -> TokenLogprob:
    return TokenLogprob(chr(token), token, logprob, (token,), (TokenLogprob("x", 120, -0.5, (120,)),) * 3)


class Script:
    """An answer of the engine, as told."""

    def __init__(self, *chunks: Chunk) -> None:
        self._chunks = iter(chunks)
        self.closed = False

    async def __anext__(self) -> Chunk:
        try:
            return next(self._chunks)
        except StopIteration:
            raise StopAsyncIteration from None

    async def aclose(self) -> None:
        self.closed = True

    def used(self) -> Usage:
        return Usage(7)


def echoed(prompt: str | tuple[int, ...], chunks: Iterable[Chunk], **params: Any) -> EchoedAnswer:
    ids = tuple(prompt.encode()) if isinstance(prompt, str) else prompt
    return EchoedAnswer(Script(*chunks), prompt, replace(PARAMS, **params), ids, ByteTokenizer())


async def test_choices_that_were_quicker_wait_for_the_first_which_brings_the_prompts_values() -> None:
    quick = said("b", (98,), index=1, logprobs=(value(98),))
    first = [PromptLogprobs((None, value(105))), said("a", (97,), logprobs=(value(97),))]
    last = said("c", (99,), "stop", index=1, logprobs=(value(99),))
    found = [heard(chunk) async for chunk in echoed("hi", [quick, *first, last], n=2)]
    assert [(chunk.index, chunk.text, chunk.token_ids) for chunk in found] == [
        (1, "hib", (98,)),
        (0, "hia", (97,)),
        (1, "c", (99,)),
    ]
    assert [[entry.logprob for entry in chunk.logprobs] for chunk in found] == [[None, -1, -1], [None, -1, -1], [-1]]
    assert [chunk.prompt_logprobs for chunk in found] == [None] * 3
    assert {len(entry.top) for chunk in found for entry in chunk.logprobs[1:2]} == {1}


async def test_without_log_probabilities_nothing_waits() -> None:
    answer = echoed("hi", [said("b", (98,), index=1), said()], n=2, logprobs=False)
    assert [(c.index, c.text, c.logprobs) for c in [heard(chunk) async for chunk in answer]] == [
        (1, "hib", ()),
        (0, "hi", ()),
    ]


async def test_a_prompt_of_one_token_has_one_entry_without_a_value() -> None:
    (chunk,) = [heard(c) async for c in echoed((104,), [PromptLogprobs((None,)), said(finish_reason="length")])]
    assert [(entry.token, entry.logprob, entry.top) for entry in chunk.logprobs] == [("h", None, ())]
    assert (chunk.text, chunk.finish_reason) == ("h", "length")


async def test_what_prompt_logprobs_has_asked_for_is_given_beside_the_echo() -> None:
    script = [PromptLogprobs((None, value(105))), said(finish_reason="length")]
    (given, chunk) = [heard(c) async for c in echoed("hi", script, prompt_logprobs=0, top_logprobs=2)]
    assert given.prompt_logprobs is not None
    assert [entry and entry.top for entry in given.prompt_logprobs] == [None, ()]
    assert len(chunk.logprobs[1].top) == 2


async def test_a_long_prompt_leaves_in_pieces_and_its_text_with_the_first_token() -> None:
    size = 2 * PIECE + 1
    first = [PromptLogprobs((None, *[value(97)] * (size - 1))), said("!", (33,), logprobs=(value(33),))]
    found = [heard(chunk) async for chunk in echoed("a" * size, first)]
    assert [len(chunk.logprobs) for chunk in found] == [PIECE, PIECE, 2]
    assert [chunk.text for chunk in found] == ["", "", "a" * size + "!"]
    assert [chunk.token_ids for chunk in found] == [(), (), (33,)]


async def test_closing_and_usage_are_the_engines() -> None:
    answer = echoed("hi", [])
    await answer.aclose()
    assert answer.used() == Usage(7)
    assert answer._answer.closed  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("params", "tokens", "param"),
    [
        (PARAMS, MOST_PROMPT_LOGPROBS // 2, "logprobs"),
        (replace(PARAMS, n=4), MOST_PROMPT_LOGPROBS // 8, "logprobs"),
        (GenerationParams(prompt_logprobs=3, n=4), MOST_PROMPT_LOGPROBS // 4, "prompt_logprobs"),
        (GenerationParams(max_tokens=0, echo=True), MOST_PROMPT_LOGPROBS, "prompt_logprobs"),
    ],
    ids=["echo", "echo of several choices", "the engine's form, told once", "no answer"],
)
def test_more_values_than_an_answer_holds_are_refused_by_name(
    params: GenerationParams, tokens: int, param: str
) -> None:
    require_bounded_evidence(params, tokens)
    with pytest.raises(InvalidRequest, match=str(MOST_PROMPT_LOGPROBS)) as caught:
        require_bounded_evidence(params, tokens + 1)
    assert (caught.value.code, caught.value.param) == ("too_many_values", param)


def test_a_prompt_without_log_probabilities_may_have_any_length() -> None:
    require_bounded_evidence(GenerationParams(echo=True, logprobs=False, max_tokens=1), 10**9)
    require_bounded_evidence(GenerationParams(logprobs=True, top_logprobs=20), 10**9)
