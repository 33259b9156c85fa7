"""The list of models in Anthropic's shape: who is in it, and its pages."""

from __future__ import annotations

import pytest

from gateway.api.anthropic.model_list import model_info, page
from gateway.errors import InvalidRequest
from gateway.flow.values import ModelCard

CARDS = (
    *(ModelCard(f"m{number}", "local", created=1_767_225_600) for number in range(5)),
    ModelCard("embed", "local", actions=("embeddings",)),
)


def ids(query: dict[str, str]) -> tuple[list[str], bool]:
    found = page(CARDS, query)
    names = [model["id"] for model in found["data"]]
    assert (found["first_id"], found["last_id"]) == ((names[0], names[-1]) if names else (None, None))
    return names, found["has_more"]


def test_a_model_says_what_anthropics_clients_read() -> None:
    assert model_info(CARDS[0]) == {
        "type": "model",
        "id": "m0",
        "display_name": "m0",
        "created_at": "2026-01-01T00:00:00Z",
        "lifecycle": "active",
        "max_input_tokens": 4096,
        "max_tokens": 4096,
    }


def test_models_that_take_no_message_are_left_out() -> None:
    assert ids({}) == (["m0", "m1", "m2", "m3", "m4"], False)


def test_pages_go_both_ways() -> None:
    assert ids({"limit": "2"}) == (["m0", "m1"], True)
    assert ids({"limit": "2", "after_id": "m1"}) == (["m2", "m3"], True)
    assert ids({"limit": "2", "after_id": "m3"}) == (["m4"], False)
    assert ids({"limit": "2", "before_id": "m3"}) == (["m1", "m2"], True)
    assert ids({"after_id": "m4"}) == ([], False)


@pytest.mark.parametrize("query", [{"limit": "0"}, {"limit": "1001"}, {"limit": "x"}, {"after_id": "embed"}])
def test_a_page_that_there_is_not_is_refused(query: dict[str, str]) -> None:
    with pytest.raises(InvalidRequest):
        page(CARDS, query)
