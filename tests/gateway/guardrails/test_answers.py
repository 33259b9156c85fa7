"""An answer on its way out: what leaves, when, and what is recorded; by the kind of duty."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from typing import Any

import pytest

from gateway.errors import Unavailable
from gateway.flow.values import Obligations, TokenLogprob
from gateway.guardrails import answers
from gateway.guardrails.actions import actions_of
from gateway.guardrails.answers import AnswerGuard
from gateway.guardrails.scan import scan
from gateway.guardrails.spans import Span
from gateway.guardrails.timebox import NotInspected, Timebox
from tests.fakes.chunks import heard, said

CARD = ("La tarjeta es 4533", " 1229 60", "16 47", "88.", " ¿Algo más?")


@pytest.fixture
async def timebox() -> AsyncIterator[Timebox]:
    box = Timebox(timeout_s=5, workers=1)
    yield box
    box.close()


def guard_of(timebox: Timebox, redaction: str, guardrails: str = "default", *, as_json: bool = False) -> AnswerGuard:
    actions = actions_of(Obligations(redaction=redaction, guardrails=guardrails))  # type: ignore[arg-type]
    assert actions is not None
    return AnswerGuard(actions, timebox, as_json=as_json)


async def check(guard: AnswerGuard, *text: Any, **rest: Any) -> str:
    """The text that may leave."""
    return "".join([heard(chunk).text for chunk in await guard.check(said(*text, **rest))])


async def run(guard: AnswerGuard, *texts: str, index: int = 0) -> list[str]:
    seen = [await check(guard, text, index=index) for text in texts]
    return [*seen, await check(guard, finish_reason="stop", index=index)]


async def test_a_number_split_over_chunks_is_redacted(timebox: Timebox) -> None:
    guard = guard_of(timebox, "redact")
    assert "".join(await run(guard, *CARD)) == "La tarjeta es [CARD]. ¿Algo más?"
    (found,) = guard.findings
    assert (found.category, found.count, found.action, found.direction, found.where) == (
        *("card", 1, "redact"),
        *("out", "answer"),
    )


async def test_only_a_word_is_held_back(timebox: Timebox) -> None:
    assert await run(guard_of(timebox, "redact"), "Hola ", "mun", "do, ", "adiós") == [
        "Hola ",
        "",
        "mundo, ",
        "",
        "adiós",
    ]


async def test_a_block_ends_the_answer_before_the_number(timebox: Timebox) -> None:
    guard = guard_of(timebox, "block")
    seen = [await check(guard, text) for text in CARD]
    assert guard.blocked == "card"
    assert "".join(seen) == "La tarjeta es "
    assert guard.findings[0].action == "block"


async def test_what_only_looks_personal_is_redacted_where_numbers_block(timebox: Timebox) -> None:
    guard = guard_of(timebox, "block")
    assert "".join(await run(guard, "Escribe a ana@", "example.com ya")) == "Escribe a [EMAIL] ya"
    assert guard.blocked is None


async def test_flagging_lets_every_chunk_pass_untouched(timebox: Timebox) -> None:
    guard = guard_of(timebox, "flag")
    chunks = [said(text, token_ids=(1,)) for text in CARD] + [said(finish_reason="stop")]
    assert [(await guard.check(chunk))[0] is chunk for chunk in chunks] == [True] * 6
    assert [(found.category, found.action) for found in guard.findings] == [("card", "flag")]


async def test_choices_are_read_apart(timebox: Timebox) -> None:
    guard = guard_of(timebox, "redact")
    for first, second in zip(CARD, ("uno ", "dos ", "tres ", "cuatro ", "cinco "), strict=True):
        await guard.check(said(first, index=0))
        assert await check(guard, second, index=1) == second
    assert [found.category for found in guard.findings] == ["card"]


async def test_what_a_backend_never_finished_is_flushed(timebox: Timebox) -> None:
    guard = guard_of(timebox, "redact")
    await guard.check(said("El DNI 36796476H", index=2))
    assert [(chunk.index, heard(chunk).text) for chunk in await guard.flush()] == [(2, "DNI [ES_NIF]")]
    assert await guard.flush() == ()


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ('{"card": 4111111111111111, "n": 1}', '{"card": null, "n": 1}'),
        ('{"note": "it is 4111111111111111"}', '{"note": "it is [CARD]"}'),
        ('{"note": "una\\nana@example.com"}', '{"note": "una\\n[EMAIL]"}'),
        ('{"note": "\\u00e1na@example.com"}', '{"note": "\\u00e1[EMAIL]"}'),
        ('{"note": "\\\\ana@example.com"}', '{"note": "\\\\[EMAIL]"}'),
        ('{"note": "a \\" quote", "cards": [4111111111111111]}', '{"note": "a \\" quote", "cards": [null]}'),
    ],
)
async def test_json_stays_json(timebox: Timebox, text: str, shown: str) -> None:
    assert "".join(await run(guard_of(timebox, "redact", as_json=True), *text)) == shown


async def test_a_long_chunk_is_read_beside_the_event_loop(timebox: Timebox, monkeypatch: pytest.MonkeyPatch) -> None:
    went_on, threads = threading.Event(), set[str]()

    def watched(text: str) -> list[Span]:
        threads.add(threading.current_thread().name)
        assert went_on.wait(30), "the loop waits for the reading"
        return scan(text)

    monkeypatch.setattr(answers, "scan", watched)
    text = "palabra " * 2000
    reading = asyncio.create_task(
        guard_of(timebox, "redact").check(said(text + "4111 1111 1111 1111", finish_reason="stop"))
    )
    asyncio.get_running_loop().call_soon(went_on.set)
    (chunk,) = await reading
    assert heard(chunk).text == text + "[CARD]"
    assert all(name.startswith("esclusa-guard") for name in threads)


async def broken(*_: object, **__: object) -> None:
    raise NotInspected("took too long")


@pytest.fixture
def broken_timebox(timebox: Timebox, monkeypatch: pytest.MonkeyPatch) -> Timebox:
    monkeypatch.setattr(answers, "AT_ONCE", -1)
    monkeypatch.setattr(timebox, "run", broken)
    return timebox


@pytest.mark.parametrize(("redaction", "guardrails"), [("flag", "strict"), ("redact", "default"), ("block", "default")])
async def test_an_answer_that_cannot_be_inspected_is_refused(
    broken_timebox: Timebox, redaction: str, guardrails: str
) -> None:
    with pytest.raises(Unavailable) as caught:
        await guard_of(broken_timebox, redaction, guardrails).check(said("hola"))
    assert caught.value.code == "guardrails_unavailable"


@pytest.mark.parametrize(("redaction", "guardrails"), [("flag", "default"), ("redact", "off"), ("block", "off")])
async def test_or_passes_on_record_where_policy_says_so(
    broken_timebox: Timebox, redaction: str, guardrails: str
) -> None:
    guard = guard_of(broken_timebox, redaction, guardrails)
    assert "".join(await run(guard, "hola 4111 1111", " 1111 1111")) == "hola 4111 1111 1111 1111"
    assert [(found.category, found.action) for found in guard.findings] == [("not_inspected", "flag")]


async def test_giving_up_loses_nothing_that_was_held(timebox: Timebox, monkeypatch: pytest.MonkeyPatch) -> None:
    guard = guard_of(timebox, "redact", "off")
    first = await check(guard, text="Se llama Ana Go")
    monkeypatch.setattr(answers, "AT_ONCE", -1)
    monkeypatch.setattr(timebox, "run", broken)
    assert first + "".join(await run(guard, "yene", "che")) == "Se llama Ana Goyeneche"


async def test_giving_up_on_one_choice_lets_go_of_the_others(timebox: Timebox, monkeypatch: pytest.MonkeyPatch) -> None:
    guard = guard_of(timebox, "redact", "off")
    assert await check(guard, "cero") == ""
    assert await check(guard, "uno", index=1) == ""
    monkeypatch.setattr(answers, "AT_ONCE", -1)
    monkeypatch.setattr(timebox, "run", broken)
    assert await check(guard, "s", index=0) == "ceros"
    assert await check(guard, index=0, finish_reason="stop") == ""
    assert [(chunk.index, heard(chunk).text) for chunk in await guard.flush()] == [(1, "uno")]


@pytest.mark.parametrize("text", ["12345678Z", ""])
async def test_log_probabilities_that_nobody_asked_for_do_not_leave_beside_a_redacted_text(
    timebox: Timebox, text: str
) -> None:
    guard = guard_of(timebox, "redact")
    named = (TokenLogprob(token="12345678Z", token_id=-1, logprob=-0.5),)
    assert heard((await guard.check(said(text, logprobs=named)))[0]).logprobs == ()


async def test_log_probabilities_stay_where_policy_only_flags(timebox: Timebox) -> None:
    named = (TokenLogprob(token="Hola", token_id=-1, logprob=-0.5),)
    assert heard((await guard_of(timebox, "flag").check(said("Hola", logprobs=named)))[0]).logprobs == named
