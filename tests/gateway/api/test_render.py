"""The whole form of an answer whose parts came in turns."""

from __future__ import annotations

import pytest

from gateway.api.render import ChatFormat, ChoiceBuffer
from gateway.flow.values import Delta, ReasoningDelta, RefusalDelta, TextDelta, ToolCallDelta

CALL = ToolCallDelta(text="{}", call_id="c", name="f")


@pytest.mark.parametrize(
    ("said", "field", "value"),
    [
        ([TextDelta(text="uno "), CALL, TextDelta(text="dos")], "content", "uno dos"),
        ([CALL], "content", None),
        ([ReasoningDelta(text="a"), TextDelta(text="x"), ReasoningDelta(text="b")], "reasoning_content", "ab"),
        ([ReasoningDelta(text="a"), TextDelta(text="x"), ReasoningDelta(text="b")], "reasoning", "ab"),
        ([RefusalDelta(text="no "), CALL, RefusalDelta(text="puedo")], "refusal", "no puedo"),
    ],
)
def test_a_field_has_all_of_its_pieces_as_one_text(said: list[Delta], field: str, value: str | None) -> None:
    buffer = ChoiceBuffer()
    for delta in said:
        buffer.add(delta)
    assert ChatFormat().whole(0, buffer)["message"][field] == value
