"""OpenAI's SDK uploads a file, runs it as a batch and reads the results, on a whole gateway."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from typing import Any

import openai
import pytest

from tests.fakes.stage import Stage


@pytest.fixture(scope="module")
def stage_overrides(stage_overrides: dict[str, Any]) -> dict[str, Any]:
    return {**stage_overrides, "batches": {"poll_s": 0.1, "lease_s": 3}}


@pytest.fixture
def client(stage: Stage) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{stage.url}/v1", api_key=stage.token(sub="u-batch"), max_retries=0)


def line(custom_id: str, model: str = "mini", url: str = "/v1/chat/completions", **body: Any) -> dict[str, Any]:
    asked = {"messages": [{"role": "user", "content": "Hola"}]} if url.endswith("chat/completions") else {}
    return {"custom_id": custom_id, "method": "POST", "url": url, "body": {"model": model, **asked, **body}}


def jsonl(lines: Sequence[dict[str, Any]]) -> bytes:
    return b"".join(json.dumps(each).encode() + b"\n" for each in lines)


def upload(client: openai.OpenAI, lines: Sequence[dict[str, Any]]) -> str:
    return client.files.create(file=("in.jsonl", jsonl(lines)), purpose="batch").id


def ended(client: openai.OpenAI, batch_id: str) -> Any:
    for _ in range(600):
        batch = client.batches.retrieve(batch_id)
        if batch.status in ("completed", "failed", "expired", "cancelled"):
            return batch
        time.sleep(0.05)
    raise AssertionError(f"the batch does not end: {batch}")


def results(client: openai.OpenAI, file_id: str | None) -> dict[str, Any]:
    assert file_id is not None
    found = [json.loads(each) for each in client.files.content(file_id).text.splitlines()]
    assert len({each["custom_id"] for each in found}) == len(found)
    return {each["custom_id"]: each for each in found}


def run(client: openai.OpenAI, lines: Sequence[dict[str, Any]], endpoint: Any = "/v1/chat/completions") -> Any:
    file_id = upload(client, lines)
    made = client.batches.create(input_file_id=file_id, endpoint=endpoint, completion_window="24h", metadata={"k": "v"})
    assert (made.status, made.metadata) == ("validating", {"k": "v"})
    return ended(client, made.id)


def test_a_file_goes_in_and_comes_out_as_it_was(client: openai.OpenAI) -> None:
    content = jsonl([line(f"c-{number}", pad="ñ" * 900) for number in range(700)])
    file = client.files.create(file=("mine.jsonl", content), purpose="batch")
    assert (file.bytes, file.filename, file.purpose, file.status) == (
        len(content),
        "mine.jsonl",
        "batch",
        "processed",
    )
    assert client.files.content(file.id).content == content
    assert client.files.retrieve(file.id) == file
    assert file.id in {each.id for each in client.files.list(limit=1)}  # the SDK follows `after` to the end
    assert client.files.delete(file.id).deleted
    with pytest.raises(openai.NotFoundError):
        client.files.retrieve(file.id)
    with pytest.raises(openai.NotFoundError):
        client.files.content(file.id)


def test_an_expiry_of_the_clients_own_is_kept(client: openai.OpenAI) -> None:
    file = client.files.create(
        file=("f.jsonl", b"{}"), purpose="batch", expires_after={"anchor": "created_at", "seconds": 3600}
    )
    assert file.expires_at == pytest.approx(file.created_at + 3600, abs=1)


@pytest.mark.parametrize("purpose", ["assistants", "fine-tune", "vision", "user_data"])
def test_other_purposes_are_refused_by_name(client: openai.OpenAI, purpose: Any) -> None:
    before = {each.id for each in client.files.list()}
    with pytest.raises(openai.BadRequestError) as refused:
        client.files.create(file=("f.jsonl", b"{}"), purpose=purpose)
    assert (refused.value.param, refused.value.code) == ("purpose", "invalid_value")
    assert purpose in refused.value.message
    assert {each.id for each in client.files.list()} == before


def test_a_batch_answers_every_line(client: openai.OpenAI) -> None:
    lines = [line(f"c-{number}") for number in range(20)] + [line("wrong", temperature=9)]
    batch = run(client, lines)
    assert (batch.status, batch.model) == ("completed", "mini")
    assert batch.request_counts.model_dump() == {"total": 21, "completed": 20, "failed": 1}
    assert batch.created_at <= batch.in_progress_at <= batch.finalizing_at <= batch.completed_at <= batch.expires_at
    answered, failed = results(client, batch.output_file_id), results(client, batch.error_file_id)
    assert list(answered) == [f"c-{number}" for number in range(20)]
    one = answered["c-7"]["response"]
    assert (one["status_code"], one["body"]["object"]) == (200, "chat.completion")
    assert one["body"]["choices"][0]["message"]["content"] == "Hola, mundo!"
    assert one["body"]["x_esclusa"]["request_id"] == one["request_id"]
    assert list(failed) == ["wrong"]
    assert failed["wrong"]["response"]["status_code"] == 400
    assert failed["wrong"]["response"]["body"]["error"]["param"] == "temperature"
    for file_id in (batch.output_file_id, batch.error_file_id):
        assert client.files.retrieve(file_id).bytes == len(client.files.content(file_id).content)
    assert client.files.retrieve(batch.output_file_id).purpose == "batch_output"
    assert batch.id in {each.id for each in client.batches.list(limit=1)}


@pytest.mark.parametrize(
    ("endpoint", "body"),
    [
        ("/v1/completions", {"prompt": "ab", "max_tokens": 3}),
        ("/v1/embeddings", {"input": "ab"}),
        ("/v1/responses", {"input": "ab", "max_output_tokens": 16}),
    ],
)
def test_a_batch_may_be_for_other_routes(client: openai.OpenAI, endpoint: str, body: dict[str, Any]) -> None:
    batch = run(client, [line("one", "tiny", endpoint, **body)], endpoint)
    assert batch.status == "completed", batch
    answer = results(client, batch.output_file_id)["one"]["response"]["body"]
    kinds = {"/v1/completions": "text_completion", "/v1/embeddings": "list", "/v1/responses": "response"}
    assert answer["object"] == kinds[endpoint]


def test_an_input_that_is_wrong_fails_with_its_line_numbers(client: openai.OpenAI) -> None:
    wrong = [
        line("a"),
        line("a"),
        {**line("b"), "method": "GET"},
        line("c", url="/v1/embeddings", input="x"),
        line("d", stream=True),
        line("e", model="maxi"),
        {"custom_id": "f"},
    ]
    content = jsonl(wrong) + b"\n{not json}\n"
    file = client.files.create(file=("in.jsonl", content), purpose="batch")
    made = client.batches.create(input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h")
    batch = ended(client, made.id)
    assert (batch.status, batch.output_file_id, batch.error_file_id) == ("failed", None, None)
    assert [(each.line, each.code) for each in batch.errors.data] == [
        (2, "duplicate_custom_id"),
        (3, "invalid_method"),
        (4, "invalid_url"),
        (5, "unsupported_parameter"),
        (6, "mismatched_model"),
        (7, "missing_required_parameter"),
        (9, "invalid_json"),
    ]


def test_what_nobody_may_ask_for_is_refused_at_once(client: openai.OpenAI) -> None:
    file_id = upload(client, [line("a")])
    with pytest.raises(openai.BadRequestError, match="endpoint"):
        client.batches.create(input_file_id=file_id, endpoint="/v1/videos", completion_window="24h")
    with pytest.raises(openai.BadRequestError, match="completion_window"):
        client.batches.create(
            input_file_id=file_id,
            endpoint="/v1/chat/completions",
            completion_window="1h",  # type: ignore[arg-type]
        )
    with pytest.raises(openai.NotFoundError):
        client.batches.create(input_file_id="file-0", endpoint="/v1/chat/completions", completion_window="24h")
    for unwritable in ("\0", "file-a\0", "file 1"):
        with pytest.raises(openai.BadRequestError, match="input_file_id"):
            client.batches.create(input_file_id=unwritable, endpoint="/v1/chat/completions", completion_window="24h")


def test_nobody_else_finds_a_file_or_a_batch(client: openai.OpenAI, stage: Stage) -> None:
    batch = run(client, [line("a")])
    for claims in ({"sub": "u-other"}, {"sub": "u-batch", "tenant": "globex"}):
        other = openai.OpenAI(base_url=f"{stage.url}/v1", api_key=stage.token(**claims), max_retries=0)
        for call in (other.files.retrieve, other.files.content, other.files.delete):
            for file_id in (batch.input_file_id, batch.output_file_id):
                with pytest.raises(openai.NotFoundError):
                    call(file_id)
        for act in (other.batches.retrieve, other.batches.cancel):
            with pytest.raises(openai.NotFoundError):
                act(batch.id)
        with pytest.raises(openai.NotFoundError):
            other.batches.create(
                input_file_id=batch.input_file_id, endpoint="/v1/chat/completions", completion_window="24h"
            )
        assert list(other.files.list()) == []
        assert list(other.batches.list()) == []


def test_a_cancelled_batch_keeps_what_has_run_and_tells_the_rest(client: openai.OpenAI, stage: Stage) -> None:
    stage.upstream.mode, stage.upstream.delay_s = "late", 0.3
    file_id = upload(client, [line(f"c-{number}") for number in range(40)])
    made = client.batches.create(input_file_id=file_id, endpoint="/v1/chat/completions", completion_window="24h")
    while client.batches.retrieve(made.id).request_counts.completed == 0:
        time.sleep(0.05)
    with pytest.raises(openai.ConflictError, match="batch"):
        client.files.delete(file_id)
    assert client.batches.cancel(made.id).status in ("cancelling", "cancelled")
    batch = ended(client, made.id)
    assert batch.status == "cancelled"
    kept, left = results(client, batch.output_file_id), results(client, batch.error_file_id)
    assert len(kept) == batch.request_counts.completed > 0
    assert len(kept) + len(left) == 40
    assert not set(kept) & set(left)
    assert {each["error"]["code"] for each in left.values()} == {"batch_cancelled"}
    assert client.files.retrieve(batch.error_file_id).bytes == len(client.files.content(batch.error_file_id).content)
    assert client.batches.cancel(made.id).status == "cancelled"
