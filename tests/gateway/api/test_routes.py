"""Default deny: every route of the application refuses a stranger, and only the probes are public (T16)."""

from __future__ import annotations

import json

import httpx2
import openapi_spec_validator
import pytest

from gateway.app import create_app
from tests.fakes.routes import filled, flat_routes
from tests.fakes.stage import Stage

PUBLIC = {"/livez", "/readyz", "/health"}
ROLES = ("employee", "analyst", "auditor", "policy-admin", "security")


def routes_of(stage: Stage) -> list[tuple[str, str]]:
    """(method, path) of everything that can be reached, parameters filled in."""
    return [(method, filled(path)) for method, path in flat_routes(create_app(stage.gateway.services).routes)]


def test_the_list_of_routes_is_not_empty_by_accident(stage: Stage) -> None:
    paths = {path for _, path in routes_of(stage)}
    assert paths >= PUBLIC
    assert {"/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/models"} <= paths
    assert "/admin/v1/policies/current" in paths
    assert "/admin/v1/audit/events" in paths
    assert len(paths) > 20


def test_no_route_but_the_probes_answers_a_stranger(stage: Stage) -> None:
    with httpx2.Client(base_url=stage.url) as client:
        for method, path in routes_of(stage):
            answer = client.request(method, path, headers={"content-type": "application/json"}, content=b"{}")
            if path in PUBLIC:
                assert answer.status_code in (200, 503), (method, path)
            else:
                assert answer.status_code == 401, (method, path, answer.text)
                assert answer.headers["www-authenticate"].startswith("Bearer"), path
                assert answer.json()["error"]["code"] == "missing_token", path


def test_a_forged_token_opens_no_route(stage: Stage) -> None:
    forged = stage.token()[:-12] + "AAAAAAAAAAAA"
    with httpx2.Client(base_url=stage.url, headers={"authorization": f"Bearer {forged}"}) as client:
        for method, path in routes_of(stage):
            if path not in PUBLIC:
                assert client.request(method, path).status_code == 401, (method, path)


def test_an_admin_route_never_opens_to_a_model_user(stage: Stage) -> None:
    with httpx2.Client(base_url=stage.url, headers=stage.headers("analyst")) as client:
        for method, path in routes_of(stage):
            if path.startswith("/admin/"):
                answer = client.request(method, path, content=b"{}", headers={"content-type": "application/json"})
                assert answer.status_code == 403, (method, path, answer.text)


@pytest.mark.parametrize("role", ["auditor", "policy-admin", "security"])
def test_administrative_rights_give_no_model(stage: Stage, role: str) -> None:
    body = {"model": "mini", "messages": [{"role": "user", "content": "x"}], "prompt": "x", "input": "x"}
    shapes = {
        "/v1/chat/completions": ("model", "messages"),
        "/v1/completions": ("model", "prompt"),
        "/v1/embeddings": ("model", "input"),
    }
    for path, names in shapes.items():
        answer = httpx2.post(stage.url + path, json={name: body[name] for name in names}, headers=stage.headers(role))
        assert answer.status_code == 403, path
        assert answer.json()["error"]["code"] == "model_not_permitted"


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/nowhere", 404, "not_found"),
        ("GET", "/v1/chat/completions", 405, "method_not_allowed"),
        ("DELETE", "/v1/models", 405, "method_not_allowed"),
        ("GET", "/docs", 404, "not_found"),
        ("GET", "/redoc", 404, "not_found"),
        ("GET", "/metrics", 404, "not_found"),
        ("POST", "/invocations", 404, "not_found"),
        ("POST", "/v1/audio/speech", 404, "not_found"),
    ],
)
def test_unknown_paths_and_methods_have_our_error_shape(
    stage: Stage, method: str, path: str, status: int, code: str
) -> None:
    answer = httpx2.request(method, stage.url + path)
    assert answer.status_code == status
    assert answer.json()["error"]["code"] == code
    assert answer.json()["error"]["request_id"] == answer.headers["x-request-id"]
    assert "detail" not in answer.json()


def test_an_admin_validation_error_is_ours_and_echoes_nothing(stage: Stage) -> None:
    answer = httpx2.get(
        stage.url + "/admin/v1/audit/events?limit=secretvalue", headers=stage.headers("auditor", sub="u-audit")
    )
    assert answer.status_code in (400, 422)
    assert answer.json()["error"]["type"] == "invalid_request_error"
    assert "secretvalue" not in answer.text


@pytest.mark.parametrize("code", ["%00", "a%00b", "%1B", "%7F", "%C2%85", "%0A"])
def test_control_characters_in_a_query_are_refused_by_the_parameters_name(stage: Stage, code: str) -> None:
    for role, path, name in (
        ("auditor", "/admin/v1/audit/events", "model"),
        ("auditor", "/admin/v1/audit/events", "subject"),
        ("auditor", "/admin/v1/audit/events", "cursor"),
        ("policy-admin", "/admin/v1/role-bindings", "role"),
    ):
        headers = stage.headers(role, sub=f"u-{role}")
        answer = httpx2.get(f"{stage.url}{path}?{name}={code}", headers=headers)
        assert (answer.status_code, answer.json()["error"].get("param")) == (422, name), (path, answer.text)


def test_control_characters_are_refused_on_every_admin_route(stage: Stage) -> None:
    roles = ("auditor", "policy-admin", "security")
    held = [stage.headers(role, sub=f"u-{role}") for role in roles]
    checked = 0
    for method, path in routes_of(stage):
        if method == "GET" and path.startswith("/admin/"):
            answers = [httpx2.get(f"{stage.url}{path}?x=%00", headers=headers) for headers in held]
            answered = [answer for answer in answers if answer.status_code != 403]
            assert all(answer.status_code == 422 for answer in answered), path
            checked += len(answered)
    assert checked > 5


def test_the_description_lists_inference_and_admin_for_token_holders(stage: Stage) -> None:
    document = httpx2.get(stage.url + "/openapi.json", headers=stage.headers("employee"), timeout=60).json()
    assert "/v1/chat/completions" in document["paths"]
    assert "/admin/v1/policies/current" in document["paths"]
    body = document["components"]["schemas"]["ChatBody"]
    assert "chat_template" not in body["properties"]
    assert body["additionalProperties"] is False


def test_models_are_listed_by_permission(stage: Stage) -> None:
    def names(role: str) -> set[str]:
        answer = httpx2.get(stage.url + "/v1/models", headers=stage.headers(role)).json()
        return {model["id"] for model in answer["data"]}

    assert names("employee") == {"mini", "auto"}
    assert names("analyst") == {"mini", "maxi", "embed", "auto"}
    assert names("auditor") == set()


def test_one_model_is_shown_only_to_whom_it_is_listed(stage: Stage) -> None:
    assert httpx2.get(stage.url + "/v1/models/maxi", headers=stage.headers("analyst")).json()["id"] == "maxi"
    hidden = httpx2.get(stage.url + "/v1/models/maxi", headers=stage.headers("employee"))
    unknown = httpx2.get(stage.url + "/v1/models/nothing", headers=stage.headers("employee"))
    assert hidden.status_code == unknown.status_code == 404
    assert {**hidden.json()["error"], "request_id": 0} == {**unknown.json()["error"], "request_id": 0}


@pytest.mark.parametrize("path", sorted(PUBLIC))
def test_probes_answer_head_like_get_without_a_body(stage: Stage, path: str) -> None:
    answers = httpx2.head(stage.url + path), httpx2.get(stage.url + path)
    head, get = answers
    assert (head.status_code, head.content) == (get.status_code, b"")
    assert head.headers["content-type"] == get.headers["content-type"]
    assert head.headers["content-length"] == str(len(get.content))


def test_probes_tell_states_and_no_names(stage: Stage) -> None:
    assert httpx2.get(stage.url + "/livez").json() == {"status": "alive"}
    ready = httpx2.get(stage.url + "/readyz")
    assert ready.status_code == 200
    assert ready.json()["status"] == "ready"
    assert "127.0.0.1" not in ready.text
    assert json.dumps(ready.json()).count("mini") == 0


@pytest.mark.parametrize(
    ("path", "instead"),
    [
        ("/v1/images/generations", "no model here"),
        ("/v1/audio/transcriptions", "no model here"),
        ("/v1/fine_tuning/jobs", "configuration"),
        ("/v1/realtime", "stream"),
        ("/openai/deployments/m/chat/completions", "Azure"),
        ("/api/chat", "/v1/chat/completions"),
        ("/chat/completions", "begin with `/v1`"),
    ],
)
def test_a_path_of_a_known_api_is_told_what_is_served_instead(stage: Stage, path: str, instead: str) -> None:
    answer = httpx2.post(stage.url + path, json={}, headers=stage.headers())
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "not_found")
    assert instead in answer.json()["error"]["hint"]


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/v1/embeddings"])
def test_an_answer_cannot_be_resumed(stage: Stage, path: str) -> None:
    body = {"model": "mini", "messages": [{"role": "user", "content": "Hola"}], "stream": True}
    answer = httpx2.post(stage.url + path, json=body, headers=stage.headers() | {"last-event-id": "7"})
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["param"]) == (400, "unsupported_header", "last-event-id")


def test_the_description_is_a_valid_document_in_which_every_operation_has_its_own_name(stage: Stage) -> None:
    document = httpx2.get(f"{stage.url}/openapi.json", headers=stage.headers()).json()
    openapi_spec_validator.validate(document)
    names = [operation.get("operationId") for path in document["paths"].values() for operation in path.values()]
    assert None not in names
    assert len(set(names)) == len(names)
    assert document["servers"]
