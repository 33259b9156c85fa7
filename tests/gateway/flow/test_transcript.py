"""The digest of an answer: of its text where it is text alone, else one that tells parts, calls and names apart."""

from __future__ import annotations

import hashlib

import pytest

from gateway.flow.parts import TextPart, ToolCallPart
from gateway.flow.transcript import Transcript
from gateway.flow.values import Delta, ReasoningDelta, RefusalDelta, TextDelta, ToolCallDelta


def digest(*deltas: Delta) -> bytes:
    transcript = Transcript(keep=False)
    for delta in deltas:
        transcript.add(delta)
    return transcript.digest()


def test_an_answer_of_text_alone_has_the_digest_of_its_text() -> None:
    assert digest(TextDelta(text="uno "), TextDelta(text="dos")) == hashlib.sha256(b"uno dos").digest()


def test_how_an_answer_was_cut_into_deltas_does_not_matter() -> None:
    whole = [TextDelta(text="voy"), ToolCallDelta(text='{"a":1}', call_id="c", name="f")]
    pieces = [
        TextDelta(text="v"),
        TextDelta(text="oy"),
        ToolCallDelta(call_id="c", name="f"),
        ToolCallDelta(text='{"a"'),
        ToolCallDelta(text=":1}"),
    ]
    assert digest(*whole) == digest(*pieces)


@pytest.mark.parametrize(
    "other",
    [
        [TextDelta(text="ab")],
        [TextDelta(text="a"), ReasoningDelta(text="b")],
        [TextDelta(text="a"), RefusalDelta(text="b")],
        [ReasoningDelta(text="a"), TextDelta(text="b")],
        [TextDelta(text="a"), ToolCallDelta(text="b", call_id="c", name="f")],
        [TextDelta(text="a"), ToolCallDelta(text="b", call_id="d", name="f")],
        [TextDelta(text="a"), ToolCallDelta(text="b", call_id="c", name="g")],
        [TextDelta(text="a"), ToolCallDelta(text="b", call_id="cf", name="")],
        [TextDelta(text="a"), ReasoningDelta(index=1, text="b")],
    ],
)
def test_answers_that_differ_in_anything_have_other_digests(other: list[Delta]) -> None:
    asked = [TextDelta(text="a"), ToolCallDelta(text="b", call=1, call_id="e", name="f")]
    assert digest(*other) != digest(*asked)
    assert len({digest(*other), digest(TextDelta(text="a")), digest(ReasoningDelta(text="b"))}) == 3


def test_parts_are_kept_by_choice_where_policy_asks_for_it() -> None:
    transcript = Transcript(keep=True)
    for delta in (TextDelta(1, "uno"), ToolCallDelta(0, "{}", call_id="c", name="f"), TextDelta(1, " dos")):
        transcript.add(delta)
    assert transcript.contents() == ((ToolCallPart("c", "f", "{}"),), (TextPart("uno dos"),))
    assert Transcript(keep=False).contents() is None
