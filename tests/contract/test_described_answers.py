"""The OpenAPI document says everything, and what it says is what comes: real answers are held against its schemas."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest
from pydantic import BaseModel

from gateway.access.document.model import PolicySet
from gateway.access.document.parsing import parse_policy
from gateway.admin.audit.views import EventDetail, EventPage
from gateway.api.answers import (
    Alive,
    ChatCompletion,
    ChatCompletionChunk,
    EmbeddingList,
    ModelList,
    ModelObject,
    ReadinessView,
    TextCompletion,
)
from gateway.api.anthropic.answers import (
    AnthropicError,
    AnthropicModelPage,
    MessageEvent,
    MessageView,
    ModelInfo,
    TokensView,
)
from gateway.api.openapi import HEADERS
from tests.fakes.stage import Stage
from tests.gateway.api.test_route_matrix import MATRIX, MODEL

METHODS = {"get", "post", "put", "patch", "delete"}
CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "Hola"}], "max_tokens": 3, "seed": 1}
MESSAGES = {"model": "tiny", "messages": [{"role": "user", "content": "Hola"}], "max_tokens": 3}
TEXT = {"model": "tiny", "prompt": "Hola", "max_tokens": 3, "seed": 1}


@pytest.fixture(scope="module")
def document(stage: Stage) -> dict[str, Any]:
    answer: dict[str, Any] = httpx2.get(f"{stage.url}/openapi.json", headers=stage.headers(), timeout=60).json()
    return answer


def operations(document: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, item in document["paths"].items():
        for method in METHODS & item.keys():
            yield method, path, item[method]


def references(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        if "$ref" in value:
            yield value["$ref"]
        for item in value.values():
            yield from references(item)
    elif isinstance(value, list):
        for item in value:
            yield from references(item)


def test_every_operation_describes_its_answer(document: dict[str, Any]) -> None:
    for method, path, operation in operations(document):
        good = {status: answer for status, answer in operation["responses"].items() if status.startswith("2")}
        assert good, (method, path)
        for status, answer in good.items():
            for kind, content in answer["content"].items():
                assert content.get("schema"), (method, path, status, kind)


def test_every_operation_has_a_summary_a_tag_and_named_refusals(document: dict[str, Any]) -> None:
    for method, path, operation in operations(document):
        assert operation["summary"], path
        assert operation["tags"], path
        responses = operation["responses"]
        needed = {"default"} if operation["tags"] == ["health"] else {"default", "401", "403", "503"}
        assert needed <= responses.keys(), (method, path)
        refused = [answer for status, answer in responses.items() if status[0] in "45d" and path[1:7] != "readyz"]
        if operation["tags"] != ["health"]:
            for answer in refused:
                schema = answer["content"]["application/json"]["schema"]
                name = "AnthropicError" if path.startswith("/v1/messages") else "Error"
                assert schema == {"$ref": f"#/components/schemas/{name}"}, (method, path)


def test_every_operation_that_writes_describes_its_body(document: dict[str, Any]) -> None:
    without = {"cancel", "restore", "approve", "reject", "pause", "resume", "drain", "sleep", "wake", "clear-poison"}
    for method, path, operation in operations(document):
        if method in ("post", "put", "patch") and path.replace("/cancel", ":cancel").rpartition(":")[2] not in without:
            for content in operation["requestBody"]["content"].values():
                assert content["schema"], (method, path)


def test_every_route_that_works_for_a_caller_is_in_the_document(document: dict[str, Any]) -> None:
    listed = {(method.upper(), path) for method, path, _ in operations(document)}
    wanted = {route for route, right in MATRIX.items() if right == MODEL}
    assert wanted <= listed


def test_every_parameter_of_a_path_is_described(document: dict[str, Any]) -> None:
    for method, path, operation in operations(document):
        named = {item["name"] for item in operation.get("parameters", ()) if item["in"] == "path"}
        assert named == {part.split("}")[0] for part in path.split("{")[1:]}, (method, path)


def test_every_reference_leads_somewhere(document: dict[str, Any]) -> None:
    schemas = document["components"]["schemas"]
    for reference in references(document):
        assert reference.removeprefix("#/components/schemas/") in schemas, reference


def test_only_the_probes_need_no_credential(document: dict[str, Any]) -> None:
    assert document["security"] == [{"bearer": []}]
    free = {path for _, path, operation in operations(document) if operation.get("security") == []}
    assert free == {"/livez", "/readyz", "/health"}


def test_bodies_of_inference_refuse_what_they_do_not_name(document: dict[str, Any]) -> None:
    for name in ("ChatBody", "CompletionBody", "EmbeddingBody", "MessagesBody", "CountBody"):
        assert document["components"]["schemas"][name]["additionalProperties"] is False


def holds(model: type[BaseModel], value: Any) -> None:
    model.model_validate_json(json.dumps(value))


@pytest.mark.parametrize(
    ("path", "body", "model"),
    [
        ("/v1/chat/completions", CHAT, ChatCompletion),
        ("/v1/chat/completions", {**CHAT, "logprobs": True, "top_logprobs": 2}, ChatCompletion),
        ("/v1/completions", TEXT, TextCompletion),
        ("/v1/completions", {**TEXT, "logprobs": 2, "prompt_logprobs": 1}, TextCompletion),
        ("/v1/embeddings", {"model": "tiny", "input": "Hola"}, EmbeddingList),
        ("/v1/messages", MESSAGES, MessageView),
        ("/v1/messages/count_tokens", {name: MESSAGES[name] for name in ("model", "messages")}, TokensView),
        ("/v1/embeddings", {"model": "tiny", "input": ["a", "b"], "encoding_format": "base64"}, EmbeddingList),
    ],
)
def test_a_whole_answer_is_as_described(stage: Stage, path: str, body: dict[str, Any], model: type[BaseModel]) -> None:
    answer = httpx2.post(stage.url + path, json=body, headers=stage.headers(), timeout=30)
    assert answer.status_code == 200, answer.text
    holds(model, answer.json())
    ours = {name for name in answer.headers if name.startswith(("x-esclusa", "x-ratelimit"))}
    assert ours <= HEADERS.keys()


@pytest.mark.parametrize(
    ("path", "body", "model"),
    [
        ("/v1/chat/completions", CHAT, ChatCompletionChunk),
        ("/v1/chat/completions", {**CHAT, "logprobs": True, "top_logprobs": 2}, ChatCompletionChunk),
        ("/v1/completions", TEXT, TextCompletion),
        ("/v1/completions", {**TEXT, "logprobs": 1}, TextCompletion),
    ],
)
def test_every_event_of_a_stream_is_as_described(
    stage: Stage, path: str, body: dict[str, Any], model: type[BaseModel]
) -> None:
    asked = {**body, "stream": True, "stream_options": {"include_usage": True}}
    answer = httpx2.post(stage.url + path, json=asked, headers=stage.headers(), timeout=30)
    events = [line.removeprefix("data: ") for line in answer.text.splitlines() if line.startswith("data: ")]
    assert len(events) >= 4
    assert events.pop() == "[DONE]"
    for event in events:
        holds(model, json.loads(event))


def test_every_event_of_a_message_is_as_described(stage: Stage) -> None:
    asked = {**MESSAGES, "stream": True}
    answer = httpx2.post(f"{stage.url}/v1/messages", json=asked, headers=stage.headers(), timeout=30)
    events = [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: ")]
    assert {event["type"] for event in events} >= {"message_start", "content_block_delta", "ping", "message_stop"}
    for event in events:
        holds(MessageEvent, event)


def test_an_error_of_anthropics_routes_is_as_described(stage: Stage) -> None:
    for body in ({}, {**MESSAGES, "model": "none"}, {**MESSAGES, "mcp_servers": [{}]}):
        answer = httpx2.post(f"{stage.url}/v1/messages", json=body, headers=stage.headers(), timeout=30)
        assert answer.status_code in (400, 404)
        holds(AnthropicError, answer.json())


def test_lists_of_models_are_as_described(stage: Stage) -> None:
    found = httpx2.get(f"{stage.url}/v1/models", headers=stage.headers()).json()
    holds(ModelList, found)
    holds(ModelObject, found["data"][0])
    headers = {**stage.headers(), "anthropic-version": "2023-06-01"}
    holds(AnthropicModelPage, httpx2.get(f"{stage.url}/v1/models", headers=headers).json())
    holds(ModelInfo, httpx2.get(f"{stage.url}/v1/models/tiny", headers=headers).json())


def test_probes_are_as_described(stage: Stage) -> None:
    holds(Alive, httpx2.get(f"{stage.url}/livez").json())
    holds(ReadinessView, httpx2.get(f"{stage.url}/readyz").json())


def test_audit_events_are_as_described(stage: Stage) -> None:
    httpx2.post(f"{stage.url}/v1/chat/completions", json=CHAT, headers=stage.headers(), timeout=30)
    httpx2.post(f"{stage.url}/v1/chat/completions", json=CHAT, headers={"authorization": "Bearer nobody"})
    auditor = stage.headers("auditor", sub="u-auditor")
    deadline, found = time.monotonic() + 10, dict[str, Any](data=[])
    while len(found["data"]) < 3 and time.monotonic() < deadline:
        found = httpx2.get(f"{stage.url}/admin/v1/audit/events", headers=auditor).json()
    holds(EventPage, found)
    for event in found["data"][:5]:
        detail = httpx2.get(f"{stage.url}/admin/v1/audit/events/{event['event_id']}", headers=auditor).json()
        holds(EventDetail, detail)


def test_the_policy_is_as_described(stage: Stage) -> None:
    author = stage.headers("policy-admin", sub="u-policy")
    shown = httpx2.get(f"{stage.url}/admin/v1/policies/current", headers=author).text
    assert isinstance(parse_policy(shown, name="shown", syntax="json"), PolicySet)


def test_generators_get_one_name_for_each_schema_and_no_reference_to_another(document: dict[str, Any]) -> None:
    """They call their classes by the titles, and two of one title end with neither."""
    schemas = document["components"]["schemas"]
    titles = {name: schema["title"] for name, schema in schemas.items() if "title" in schema}
    assert titles == {name: name for name in titles}
    assert [name for name in schemas if "__" in name] == []
    for part in _inside(document):
        if mapping := part.get("discriminator", {}).get("mapping"):
            assert set(mapping.values()) == {option["$ref"] for option in part["oneOf"]}


def _inside(value: Any) -> Iterator[dict[str, Any]]:
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        if isinstance(inner, dict):
            yield inner
        yield from _inside(inner)
