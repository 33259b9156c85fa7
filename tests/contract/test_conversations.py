"""Conversations as objects, as the OpenAI SDK speaks of them: their owner's alone, and gone as a whole."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx2
import openai
import pytest
from openai import OpenAI

from gateway.api.responses.answers import ConversationView, ItemList
from tests.contract.test_stored_responses import (
    client_of,
    rows,
    said_to_the_model,
    stage_overrides,  # noqa: F401
    texts_of,
)
from tests.fakes.stage import Stage


@pytest.fixture
def client(stage: Stage) -> Iterator[OpenAI]:
    with client_of(stage) as client:
        yield client


def test_a_conversation_goes_on_by_its_name(stage: Stage, client: OpenAI) -> None:
    conversation = client.conversations.create(metadata={"tema": "x"}, items=[{"role": "user", "content": "Uno"}])
    first = client.responses.create(model="mini", input="Dos", conversation=conversation.id)
    assert first.conversation is not None
    assert first.conversation.id == conversation.id
    client.responses.create(model="mini", input="Tres", conversation={"id": conversation.id}, stream=False)
    assert said_to_the_model(stage) == [
        ("user", "Uno"),
        ("user", "Dos"),
        ("assistant", "Hola, mundo!"),
        ("user", "Tres"),
    ]
    items = client.conversations.items.list(conversation.id, order="asc")
    assert texts_of(items) == ["Uno", "Dos", "Hola, mundo!", "Tres", "Hola, mundo!"]
    assert client.responses.retrieve(first.id).id == first.id


def test_it_is_read_changed_and_deleted(stage: Stage, client: OpenAI) -> None:
    made = client.conversations.create(metadata={"a": "1"})
    assert client.conversations.retrieve(made.id) == made
    assert client.conversations.update(made.id, metadata={"b": "2"}).metadata == {"b": "2"}
    assert client.conversations.retrieve(made.id).metadata == {"b": "2"}
    headers = stage.headers("kept")
    ConversationView.model_validate(httpx2.get(f"{stage.url}/v1/conversations/{made.id}", headers=headers).json())
    answer = client.responses.create(model="mini", input="Hola", conversation=made.id)
    assert client.conversations.delete(made.id).deleted is True
    with pytest.raises(openai.NotFoundError) as gone:
        client.conversations.retrieve(made.id)
    assert gone.value.code == "conversation_not_found"
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(answer.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.create(model="mini", input="Hola", conversation=made.id)


def test_items_are_added_read_and_taken_out(stage: Stage, client: OpenAI) -> None:
    made = client.conversations.create()
    call: list[Any] = [
        {"role": "user", "content": "¿Y en Lima?"},
        {"type": "function_call", "call_id": "c1", "name": "Clima", "arguments": "{}"},
    ]
    added: Any = client.conversations.items.create(made.id, items=call)
    result: list[Any] = [{"type": "function_call_output", "call_id": "c1", "output": "19"}]
    client.conversations.items.create(made.id, items=result)
    listed = list(client.conversations.items.list(made.id))
    assert [item.type for item in listed] == ["function_call_output", "function_call", "message"]
    page = httpx2.get(f"{stage.url}/v1/conversations/{made.id}/items", headers=stage.headers("kept")).json()
    ItemList.model_validate(page)
    question = added.data[0].id
    assert client.conversations.items.retrieve(question, conversation_id=made.id).id == question
    client.conversations.items.delete(question, conversation_id=made.id)
    assert len(list(client.conversations.items.list(made.id))) == 2
    with pytest.raises(openai.NotFoundError):
        client.conversations.items.retrieve(question, conversation_id=made.id)


def test_nobody_else_has_it(stage: Stage, client: OpenAI) -> None:
    made = client.conversations.create(items=[{"role": "user", "content": "Mío"}])
    (item,) = client.conversations.items.list(made.id)
    assert item.id is not None
    for claims in ({"sub": "u-other"}, {"tenant": "globex"}):
        with client_of(stage, **claims) as other:
            attempts: list[Any] = [
                lambda other=other: other.conversations.retrieve(made.id),
                lambda other=other: other.conversations.update(made.id, metadata={}),
                lambda other=other: other.conversations.delete(made.id),
                lambda other=other: other.conversations.items.list(made.id),
                lambda other=other: other.conversations.items.create(made.id, items=[{"role": "user", "content": "x"}]),
                lambda other=other: other.conversations.items.retrieve(item.id, conversation_id=made.id),
                lambda other=other: other.conversations.items.delete(item.id, conversation_id=made.id),
                lambda other=other: other.responses.create(model="mini", input="x", conversation=made.id),
            ]
            for attempt in attempts:
                with pytest.raises(openai.NotFoundError):
                    attempt()
    assert texts_of(client.conversations.items.list(made.id)) == ["Mío"]


def test_what_is_not_to_be_stored_is_not_added(client: OpenAI) -> None:
    made = client.conversations.create(items=[{"role": "user", "content": "Uno"}])
    answer = client.responses.create(model="mini", input="Dos", conversation=made.id, store=False)
    assert answer.to_dict()["store"] is False
    assert texts_of(client.conversations.items.list(made.id)) == ["Uno"]


def test_it_ends_as_a_whole(stage: Stage, client: OpenAI) -> None:
    made = client.conversations.create(items=[{"role": "user", "content": "Uno"}])
    client.responses.create(model="mini", input="Dos", conversation=made.id)
    key = made.id.removeprefix("conv_")
    ends = "SELECT DISTINCT date_trunc('minute', expires_at) AS at FROM stored_response WHERE conversation = $1::uuid"
    assert len(rows(stage, ends, key)) <= 2
    rows(stage, "UPDATE stored_conversation SET expires_at = now() - interval '1 second' WHERE id = $1::uuid", key)
    with pytest.raises(openai.NotFoundError):
        client.conversations.items.list(made.id)


def test_policy_decides_whether_there_may_be_one(stage: Stage) -> None:
    with client_of(stage, "off") as client:
        with pytest.raises(openai.PermissionDeniedError) as refused:
            client.conversations.create()
        assert refused.value.code == "conversations_not_permitted"


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"items": [{"role": "user", "content": "x"}] * 21}, "items"),
        ({"metadata": {"a": 1}}, "metadata"),
        ({"x": 1}, "x"),
        ({"items": [{"type": "computer_call"}]}, "input.0.type"),
    ],
)
def test_what_is_wrong_is_named(stage: Stage, body: dict[str, Any], param: str) -> None:
    answer = httpx2.post(f"{stage.url}/v1/conversations", json=body, headers=stage.headers("kept"))
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param), answer.text
