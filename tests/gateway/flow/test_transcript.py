"""The digest of an answer: of its text where it is text alone, else one that tells parts, calls and names apart."""

from __future__ import annotations

import hashlib
from dataclasses import replace

import pytest

from gateway.flow.parts import Content, ReasoningPart, RefusalPart, TextPart, ToolCallPart
from gateway.flow.transcript import Transcript, response_digest
from gateway.flow.values import Delta, TextDelta, ToolCallDelta

TEXT, CALL = TextPart("a"), ToolCallPart("e", "f", "b")
NAMED = ToolCallDelta(call_id="c", name="f")


def digest(*deltas: Delta) -> bytes:
    transcript = Transcript(keep=False)
    for delta in deltas:
        transcript.add(delta)
    return transcript.digest()


def test_an_answer_of_text_alone_has_the_digest_of_its_text() -> None:
    assert digest(TextDelta(text="uno "), TextDelta(text="dos")) == hashlib.sha256(b"uno dos").digest()
    assert digest(TextDelta(1, "uno "), TextDelta(0, "dos")) == hashlib.sha256(b"uno dos").digest()
    assert digest() == hashlib.sha256(b"").digest()


def test_the_digest_of_an_answer_with_a_call_is_fixed() -> None:
    """A commitment in the audit trail is compared with a digest that is computed years later."""
    said = [TextDelta(text="voy"), ToolCallDelta(text='{"a":1}', call_id="c", name="f")]
    text, arguments = hashlib.sha256(b"voy").digest(), hashlib.sha256(b'{"a":1}').digest()
    call = b"\x1e0\x1ftool_call\x1f1\x1fc\x1f1\x1ff\x1f" + arguments
    assert digest(*said) == hashlib.sha256(b"parts\x1e0\x1ftext\x1f0\x1f\x1f0\x1f\x1f" + text + call).digest()


@pytest.mark.parametrize(
    "pieces",
    [
        [TextDelta(text="v"), TextDelta(text="oy"), NAMED, ToolCallDelta(text='{"a":1}')],
        [NAMED, TextDelta(text="voy"), ToolCallDelta(text='{"a":1}')],
        [TextDelta(text="v"), replace(NAMED, text='{"a"'), TextDelta(text="oy"), ToolCallDelta(text=":1}")],
    ],
)
def test_what_a_caller_has_got_has_the_digest_however_it_came(pieces: list[Delta]) -> None:
    assert digest(*pieces) == response_digest([(TextPart("voy"), ToolCallPart("c", "f", '{"a":1}'))])


@pytest.mark.parametrize(
    "other",
    [
        (TextPart("ab"),),
        (TEXT, ReasoningPart("b")),
        (TEXT, RefusalPart("b")),
        (ReasoningPart("a"), TextPart("b")),
        (TEXT, ToolCallPart("d", "f", "b")),
        (TEXT, ToolCallPart("e", "g", "b")),
        (TEXT, ToolCallPart("ef", "", "b")),
        (TEXT, CALL, ToolCallPart("", "", "")),
        (TEXT, ToolCallPart("e", "f", ""), ToolCallPart("e", "f", "b")),
    ],
)
def test_answers_that_differ_in_anything_have_other_digests(other: Content) -> None:
    assert response_digest([other]) != response_digest([(TEXT, CALL)])
    assert response_digest([(TEXT,), other]) != response_digest([(TEXT,), (TEXT, CALL)])


def test_which_choice_has_said_it_matters_once_an_answer_is_more_than_text() -> None:
    assert response_digest([(TEXT, CALL), (TextPart("b"),)]) != response_digest([(TextPart("b"),), (TEXT, CALL)])


def test_calls_are_counted_over_all_choices() -> None:
    transcript = Transcript(keep=False)
    for delta in (TextDelta(text="x"), ToolCallDelta(call_id="c", name="f"), ToolCallDelta(text="y"),
                  ToolCallDelta(1, call_id="c", name="f"), ToolCallDelta(1, call=1, name="g")):  # fmt: skip
        transcript.add(delta)
    assert transcript.calls == 3


def test_parts_are_kept_by_choice_where_policy_asks_for_it() -> None:
    transcript = Transcript(keep=True)
    for delta in (TextDelta(1, "uno"), ToolCallDelta(0, "{}", call_id="c", name="f"), TextDelta(1, " dos")):
        transcript.add(delta)
    assert transcript.contents() == ((ToolCallPart("c", "f", "{}"),), (TextPart("uno dos"),))
    assert Transcript(keep=False).contents() is None
