"""`/v1/rerank`, `/v1/score`, `/tokenize` and `/detokenize` over a real model."""

from __future__ import annotations

from typing import Any

import httpx2
import pytest

from tests.fakes.stage import Stage
from tests.fakes.tiny_model import byte_tokenizer

TEXTS = ["El barco pasa la esclusa.", "La esclusa del canal.", "Sube el tipo de interés."]


def asked(stage: Stage, path: str, body: dict[str, Any], *roles: str) -> Any:
    answer = httpx2.post(stage.url + path, json={"model": "tiny", **body}, headers=stage.headers(*roles))
    return answer.json() if answer.status_code == 200 else (answer.status_code, answer.json()["error"])


def vectors(stage: Stage, texts: list[str]) -> list[list[float]]:
    return [row["embedding"] for row in asked(stage, "/v1/embeddings", {"input": texts})["data"]]


def cosine(one: list[float], other: list[float]) -> float:
    return sum(a * b for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize("path", ["/v1/rerank", "/v2/rerank", "/rerank"])
def test_documents_come_by_their_cosine_with_the_query(stage: Stage, path: str) -> None:
    query, *documents = vectors(stage, ["esclusas", *TEXTS])
    expected = sorted(((cosine(query, one), index) for index, one in enumerate(documents)), reverse=True)
    answer = asked(stage, path, {"query": "esclusas", "documents": [TEXTS[0], {"text": TEXTS[1]}, TEXTS[2]]})
    found = [(result["relevance_score"], result["index"]) for result in answer["results"]]
    assert found == [(pytest.approx(score, abs=1e-5), index) for score, index in expected]
    assert [result["document"]["text"] for result in answer["results"]] == [TEXTS[index] for _, index in expected]
    assert answer["usage"]["total_tokens"] == sum(len(byte_tokenizer().encode(t).ids) for t in ["esclusas", *TEXTS])


def test_only_so_many_are_told_and_without_their_texts(stage: Stage) -> None:
    body = {"query": "x", "documents": TEXTS, "top_n": 2, "return_documents": False}
    results = asked(stage, "/v1/rerank", body)["results"]
    assert len(results) == 2
    assert all("document" not in result for result in results)


@pytest.mark.parametrize("path", ["/v1/score", "/score"])
def test_pairs_of_texts_are_scored(stage: Stage, path: str) -> None:
    a, b, c = vectors(stage, TEXTS)
    one_to_many = asked(stage, path, {"text_1": TEXTS[0], "text_2": TEXTS[1:]})["data"]
    assert [row["score"] for row in one_to_many] == [
        pytest.approx(cosine(a, b), abs=1e-5),
        pytest.approx(cosine(a, c), abs=1e-5),
    ]
    pairs = asked(stage, path, {"text_1": [TEXTS[0], TEXTS[1]], "text_2": [TEXTS[0], TEXTS[2]]})["data"]
    assert [row["score"] for row in pairs] == [pytest.approx(1, abs=1e-5), pytest.approx(cosine(b, c), abs=1e-5)]


@pytest.mark.parametrize("path", ["/tokenize", "/v1/tokenize"])
def test_a_prompt_is_told_in_tokens_and_back(stage: Stage, path: str) -> None:
    ids = list(byte_tokenizer().encode("La esclusa, 漢字").ids)
    answer = asked(stage, path, {"prompt": "La esclusa, 漢字", "return_token_strs": True})
    assert (answer["count"], answer["tokens"], answer["max_model_len"]) == (len(ids), ids, 256)
    assert len(answer["token_strs"]) == len(ids)
    back = path.replace("tokenize", "detokenize")
    assert asked(stage, back, {"tokens": ids}) == {"prompt": "La esclusa, 漢字"}


def test_a_conversation_has_the_tokens_that_its_answer_is_billed_for(stage: Stage) -> None:
    messages = [{"role": "user", "content": "Hola"}]
    counted = asked(stage, "/tokenize", {"messages": messages})
    bare = asked(stage, "/tokenize", {"messages": messages, "add_generation_prompt": False})
    chat = asked(stage, "/v1/chat/completions", {"messages": messages, "max_tokens": 1})
    assert counted["count"] == chat["usage"]["prompt_tokens"]
    assert bare["count"] <= counted["count"]
    assert bare["tokens"] == counted["tokens"][: bare["count"]]


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/v1/rerank", {"query": "x", "documents": []}, "documents"),
        ("/v1/rerank", {"query": "x", "documents": ["a"] * 1001}, "documents"),
        ("/v1/rerank", {"query": "x", "documents": ["a"], "top_n": -1}, "top_n"),
        ("/v1/rerank", {"documents": ["a"]}, "query"),
        ("/v1/rerank", {"query": "x", "documents": ["a"], "rank_fields": []}, "rank_fields"),
        ("/v1/score", {"text_1": ["a", "b"], "text_2": "c"}, "text_1"),
        ("/tokenize", {}, "prompt"),
        ("/tokenize", {"prompt": "a", "messages": [{"role": "user", "content": "a"}]}, "prompt"),
        ("/detokenize", {"tokens": [10**6]}, "tokens"),
        ("/detokenize", {"tokens": []}, "tokens"),
    ],
)
def test_what_cannot_be_done_is_refused_by_name(stage: Stage, path: str, body: dict[str, Any], param: str) -> None:
    status, error = asked(stage, path, body)
    assert (status, error["param"]) == (400, param)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/rerank", {"query": "x", "documents": ["a"]}),
        ("/v1/score", {"text_1": "a", "text_2": "b"}),
        ("/tokenize", {"prompt": "a"}),
    ],
)
def test_nobody_gets_round_the_policy(stage: Stage, path: str, body: dict[str, Any]) -> None:
    assert httpx2.post(stage.url + path, json={"model": "tiny", **body}).status_code == 401
    status, error = asked(stage, path, body, "auditor")
    assert (status, error["code"]) in ((403, "model_not_permitted"), (404, "model_not_found"))


def test_an_upstream_counts_no_tokens(stage: Stage) -> None:
    status, error = asked(stage, "/tokenize", {"model": "mini", "prompt": "a"})
    assert (status, error["code"]) == (400, "unsupported_action")
