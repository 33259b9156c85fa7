"""Responses that are kept: continued, read, listed and deleted by their owner, and by nobody else."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import httpx2
import openai
import pytest
from openai import AsyncOpenAI, OpenAI
from pydantic import SecretStr

from gateway.api.responses.answers import ItemList, ResponseView
from tests.contract.test_tools import SAYS
from tests.fakes.stage import Stage, _connect, apart

POLICY = """
apiVersion: esclusa/v1
kind: PolicySet
metadata: {name: kept}
roles: {kept: {}, blocked: {}, redacted: {}, off: {}, security: {}, auditor: {}}
rules:
  - {id: kept, effect: allow, subjects: {roles: [kept]}, actions: [chat], models: {ids: [mini]},
     obligations: {responseStoreDays: 30}}
  - {id: redacted, effect: allow, subjects: {roles: [redacted]}, actions: [chat], models: {ids: [mini]},
     obligations: {responseStoreDays: 1, redaction: redact}}
  - {id: blocked, effect: allow, subjects: {roles: [blocked]}, actions: [chat], models: {ids: [mini]},
     obligations: {responseStoreDays: 1, redaction: block}}
  - {id: off, effect: allow, subjects: {roles: [off]}, actions: [chat], models: {ids: [mini]}}
  - {id: security, effect: allow, subjects: {roles: [security]}, actions: [identity.read, identity.write]}
  - {id: audit, effect: allow, subjects: {roles: [auditor]}, actions: [audit.read]}
"""
TOOLS: list[Any] = [{"type": "function", "name": "Clima", "parameters": {"type": "object"}, "strict": False}]


@pytest.fixture(scope="module")
def stage_overrides(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    path: Path = tmp_path_factory.mktemp("kept") / "policy.yaml"
    path.write_text(POLICY)
    key = base64.b64encode(b"k" * 32).decode()
    return {
        "access": {"policy_file": path},
        "audit": {"content_keys": SecretStr(f"k1:{key}")},
        "identity": {"api_key_pepper": SecretStr("p" * 32)},
    }


def client_of(stage: Stage, role: str = "kept", **claims: Any) -> OpenAI:
    return OpenAI(base_url=f"{stage.url}/v1", api_key=stage.token(role, **claims), max_retries=0)


@pytest.fixture
def client(stage: Stage) -> Iterator[OpenAI]:
    stage.upstream.says = None
    with client_of(stage) as client:
        yield client
    stage.upstream.says = None


def rows(stage: Stage, sql: str, *values: Any) -> list[dict[str, Any]]:
    async def fetch() -> list[dict[str, Any]]:
        connection = await _connect(stage.database_url)
        try:
            return [dict(row) for row in await connection.fetch(sql, *values)]
        finally:
            await connection.close()

    found: list[dict[str, Any]] = apart(fetch())
    return found


def texts_of(items: Iterable[Any]) -> list[str]:
    return [item.content[0].text for item in items]


def said_to_the_model(stage: Stage) -> list[tuple[str, Any]]:
    return [(message["role"], message["content"]) for message in stage.upstream.seen[-1].body["messages"]]


def test_what_is_kept_is_read_again_as_it_was_answered(stage: Stage, client: OpenAI) -> None:
    answer = client.responses.create(model="mini", instructions="Sé breve.", input="Hola", metadata={"a": "b"})
    assert answer.model_extra is not None
    assert answer.to_dict()["store"] is True
    again = client.responses.retrieve(answer.id)
    assert again.to_dict() == answer.to_dict()
    raw = httpx2.get(f"{stage.url}/v1/responses/{answer.id}", headers=stage.headers("kept"))
    ResponseView.model_validate(raw.json())


def test_a_streamed_response_is_kept_before_its_last_event_leaves(client: OpenAI) -> None:
    for event in client.responses.create(model="mini", input="Hola", stream=True):
        if event.type == "response.completed":
            assert client.responses.retrieve(event.response.id).output_text == "Hola, mundo!"
            break
    else:
        pytest.fail("the stream has no end")


def test_a_conversation_goes_on_without_its_instructions(stage: Stage, client: OpenAI) -> None:
    first = client.responses.create(model="mini", instructions="Sé breve.", input="Uno")
    second = client.responses.create(model="mini", input="Dos", previous_response_id=first.id)
    assert said_to_the_model(stage) == [("user", "Uno"), ("assistant", "Hola, mundo!"), ("user", "Dos")]
    client.responses.create(model="mini", instructions="Otra.", input="Tres", previous_response_id=second.id)
    assert said_to_the_model(stage) == [
        ("system", "Otra."),
        ("user", "Uno"),
        ("assistant", "Hola, mundo!"),
        ("user", "Dos"),
        ("assistant", "Hola, mundo!"),
        ("user", "Tres"),
    ]
    assert second.previous_response_id == first.id
    assert texts_of(client.responses.input_items.list(second.id)) == ["Dos"]


def test_calls_are_answered_by_their_results_alone(stage: Stage, client: OpenAI) -> None:
    stage.upstream.says = SAYS
    first = client.responses.create(model="mini", input="¿Y en Lima?", tools=TOOLS)
    stage.upstream.says = None
    results: list[Any] = [
        {"type": "function_call_output", "call_id": call.call_id, "output": "19"}
        for call in first.output
        if call.type == "function_call"
    ]
    client.responses.create(model="mini", input=results, tools=TOOLS, previous_response_id=first.id)
    assert [role for role, _ in said_to_the_model(stage)] == ["user", "assistant", "tool", "tool"]
    with pytest.raises(openai.BadRequestError) as refused:
        client.responses.create(model="mini", input=results, tools=TOOLS)
    assert refused.value.param == "input.0.call_id"


def test_items_are_named_by_reference(stage: Stage, client: OpenAI) -> None:
    """As Vercel's SDK sends a conversation that is stored."""
    first = client.responses.create(model="mini", input="Uno")
    named: list[Any] = [
        {"role": "user", "content": "Uno"},
        {"type": "item_reference", "id": first.output[0].id},
        {"role": "user", "content": "Dos"},
    ]
    client.responses.create(model="mini", input=named)
    assert said_to_the_model(stage) == [("user", "Uno"), ("assistant", "Hola, mundo!"), ("user", "Dos")]
    with client_of(stage, sub="u-other") as other, pytest.raises(openai.BadRequestError) as refused:
        other.responses.create(model="mini", input=named)
    assert (refused.value.code, refused.value.param) == ("item_not_found", "input.1.id")


def test_the_input_is_listed_in_pages(stage: Stage, client: OpenAI) -> None:
    words: list[Any] = [{"role": "user", "content": f"n{number}"} for number in range(5)]
    answer = client.responses.create(model="mini", input=words)
    page = client.responses.input_items.list(answer.id, limit=2)
    assert texts_of(page.data) == ["n4", "n3"]
    assert len(list(page)) == 5
    url = f"{stage.url}/v1/responses/{answer.id}/input_items"
    ascending = httpx2.get(url, params={"order": "asc"}, headers=stage.headers("kept")).json()
    ItemList.model_validate(ascending)
    assert [item["content"][0]["text"] for item in ascending["data"]] == [f"n{number}" for number in range(5)]
    assert ascending["has_more"] is False


def test_what_is_deleted_is_gone_and_ends_what_goes_on_from_it(client: OpenAI) -> None:
    first = client.responses.create(model="mini", input="Uno")
    second = client.responses.create(model="mini", input="Dos", previous_response_id=first.id)
    client.responses.delete(first.id)
    for gone in (lambda: client.responses.retrieve(first.id), lambda: client.responses.delete(first.id)):
        with pytest.raises(openai.NotFoundError) as absent:
            gone()
        assert absent.value.code == "response_not_found"
    assert client.responses.retrieve(second.id).output_text == "Hola, mundo!"
    with pytest.raises(openai.BadRequestError) as broken:
        client.responses.create(model="mini", input="Tres", previous_response_id=second.id)
    assert broken.value.code == "previous_response_not_found"


@pytest.mark.parametrize("claims", [{"sub": "u-other"}, {"tenant": "globex"}, {"sub": "u-1 "}])
def test_nobody_else_reads_continues_or_deletes_it(stage: Stage, client: OpenAI, claims: dict[str, Any]) -> None:
    mine = client.responses.create(model="mini", input="Mío")
    with client_of(stage, **claims) as other:
        for attempt in (other.responses.retrieve, other.responses.delete, other.responses.input_items.list):
            with pytest.raises(openai.NotFoundError):
                attempt(mine.id)
        with pytest.raises(openai.BadRequestError) as refused:
            other.responses.create(model="mini", input="¿Qué dije?", previous_response_id=mine.id)
        assert refused.value.code == "previous_response_not_found"
    assert client.responses.retrieve(mine.id).id == mine.id


def test_the_keys_of_a_service_account_share_what_is_kept_for_it(stage: Stage, client: OpenAI) -> None:
    admin = stage.headers("security", "kept", sub="u-sec")
    url = f"{stage.url}/admin/v1/service-accounts"
    account = httpx2.post(url, json={"name": "agent", "roles": ["kept"]}, headers=admin).json()
    keys = [
        httpx2.post(f"{url}/{account['id']}/keys", json={"name": name}, headers=admin).json()["key"]
        for name in ("one", "two")
    ]
    one, two = (OpenAI(base_url=f"{stage.url}/v1", api_key=key, max_retries=0) for key in keys)
    kept = one.responses.create(model="mini", input="Uno")
    assert two.responses.retrieve(kept.id).id == kept.id
    two.responses.create(model="mini", input="Dos", previous_response_id=kept.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(kept.id)


def test_nothing_is_kept_where_policy_or_the_caller_says_so(stage: Stage, client: OpenAI) -> None:
    with client_of(stage, "off") as off:
        for asks, params in ((client, {"store": False}), (off, {"store": True}), (off, {})):
            answer = asks.responses.create(model="mini", input="Hola", **params)  # type: ignore[call-overload]
            assert answer.to_dict()["store"] is False
            with pytest.raises(openai.NotFoundError):
                asks.responses.retrieve(answer.id)
        *_, last = off.responses.create(model="mini", input="Hola", stream=True)
        assert last.to_dict()["response"]["store"] is False  # type: ignore[index]


def test_it_is_kept_encrypted_and_redacted(stage: Stage) -> None:
    with client_of(stage, "redacted") as client:
        answer = client.responses.create(
            model="mini", instructions="Escribe a ana@acme.example", input="Soy luis@acme.example"
        )
        assert "ana@" not in (str(answer.instructions))
        (text,) = texts_of(client.responses.input_items.list(answer.id))
        assert "luis@" not in text
        client.responses.create(model="mini", input="¿Quién soy?", previous_response_id=answer.id)
    assert "luis@" not in json.dumps(stage.upstream.seen[-1].body)
    (row,) = rows(stage, "SELECT * FROM stored_response WHERE id = $1::uuid", answer.id.removeprefix("resp_"))
    assert b"Soy" not in row["envelope"]
    assert b"mundo" not in row["envelope"]
    assert (row["expires_at"] - row["created_at"]).total_seconds() == pytest.approx(86_400, abs=60)


def test_what_a_guardrail_takes_out_of_an_answer_is_not_kept_either(stage: Stage) -> None:
    stage.upstream.words = ("Claro. ", "Escribe a ", "ana@acme.example", " hoy. ", "Adiós.")
    with client_of(stage, "blocked") as client:
        *_, last = client.responses.create(model="mini", input="¿A quién escribo?", stream=True)
        assert last.type == "response.completed"
        assert last.response.output_text == "Claro. Escribe a [EMAIL] hoy. Adiós."
        assert client.responses.retrieve(last.response.id).output_text == last.response.output_text
        stage.upstream.words = ("La tarjeta: ", "4111 1111 ", "1111 1111", " y adiós.")
        *_, cut = client.responses.create(model="mini", input="¿Qué tarjeta?", stream=True)
        assert cut.type == "response.incomplete"
        assert cut.response.incomplete_details is not None
        assert cut.response.incomplete_details.reason == "content_filter"
        assert "4111" not in client.responses.retrieve(cut.response.id).output_text
        with pytest.raises(openai.BadRequestError) as refused:
            client.responses.create(model="mini", input="Mi tarjeta: 4111 1111 1111 1111")
        assert refused.value.code == "blocked_by_policy"


def test_what_was_said_in_confidence_is_not_continued_as_less(stage: Stage) -> None:
    """A policy decides by the class of data: what is kept is still of the class that it was sent as."""

    def asked(stated: str | None, **body: Any) -> httpx2.Response:
        headers = stage.headers("kept") | ({} if stated is None else {"x-esclusa-data-class": stated})
        whole = {"model": "mini", "input": "Hola", **body}
        return httpx2.post(f"{stage.url}/v1/responses", json=whole, headers=headers, timeout=60)

    first = asked("confidential").json()["id"]
    for lower in (None, "internal"):
        refused = asked(lower, previous_response_id=first)
        assert (refused.status_code, refused.json()["error"]["code"]) == (400, "data_class_too_low")
    second = asked("restricted", previous_response_id=first)
    assert second.status_code == 200
    assert asked("confidential", previous_response_id=second.json()["id"]).status_code == 400


def test_a_row_that_is_given_to_somebody_else_cannot_be_opened(stage: Stage, client: OpenAI) -> None:
    mine = client.responses.create(model="mini", input="Mío")
    key = mine.id.removeprefix("resp_")
    rows(stage, "UPDATE stored_response SET subject = 'u-thief' WHERE id = $1::uuid", key)
    with client_of(stage, sub="u-thief") as thief, pytest.raises(openai.NotFoundError):
        thief.responses.retrieve(mine.id)


def test_a_revoked_person_reads_nothing_more(stage: Stage) -> None:
    with client_of(stage, sub="u-leaves") as client:
        kept = client.responses.create(model="mini", input="Hola")
        stage.revoke("u-leaves")
        for attempt in (client.responses.retrieve, client.responses.delete, client.responses.input_items.list):
            with pytest.raises(openai.AuthenticationError):
                attempt(kept.id)


def test_what_is_over_is_not_there_before_it_is_swept(stage: Stage, client: OpenAI) -> None:
    kept = client.responses.create(model="mini", input="Hola")
    key = kept.id.removeprefix("resp_")
    rows(stage, "UPDATE stored_response SET expires_at = now() - interval '1 second' WHERE id = $1::uuid", key)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(kept.id)
    with pytest.raises(openai.BadRequestError):
        client.responses.create(model="mini", input="Dos", previous_response_id=kept.id)


def test_reads_and_deletions_are_on_record(stage: Stage) -> None:
    with client_of(stage, sub="u-recorded") as client:
        kept = client.responses.create(model="mini", input="Hola")
        client.responses.retrieve(kept.id)
        client.responses.delete(kept.id)
        with pytest.raises(openai.NotFoundError):
            client.responses.retrieve(kept.id)
    sql = "SELECT action, rec FROM audit_event WHERE phase = 'access' AND subject = 'u-recorded' ORDER BY ts"
    found: list[dict[str, Any]] = []
    for _ in range(100):
        found = rows(stage, sql)
        if len(found) == 3:
            break
        apart(asyncio.sleep(0.1))
    assert [(row["action"], json.loads(row["rec"])["result"]["status"]) for row in found] == [
        ("responses.read", 200),
        ("responses.delete", 200),
        ("responses.read", 404),
    ]


@pytest.mark.parametrize("name", ["resp_x", "resp_" + "0" * 32, "x", "..%2fmodels"])
def test_what_is_no_id_is_not_there(stage: Stage, name: str) -> None:
    for method, path in (("GET", ""), ("DELETE", ""), ("GET", "/input_items")):
        answer = httpx2.request(method, f"{stage.url}/v1/responses/{name}{path}", headers=stage.headers("kept"))
        assert answer.status_code == 404, (method, path, answer.text)


async def test_the_async_client_does_the_same(stage: Stage) -> None:
    async with AsyncOpenAI(base_url=f"{stage.url}/v1", api_key=stage.token("kept"), max_retries=0) as client:
        first = await client.responses.create(model="mini", input="Uno")
        async with client.responses.stream(model="mini", input="Dos", previous_response_id=first.id) as stream:
            second = await stream.get_final_response()
        assert (await client.responses.retrieve(second.id)).output_text == second.output_text
        await client.responses.delete(second.id)
