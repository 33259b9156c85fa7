"""`/v1/embeddings` as its clients use it: texts, token ids, lists of either, sizes and encodings."""

from __future__ import annotations

import base64
import struct
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from openai import OpenAI

from tests.fakes.stage import Stage
from tests.fakes.tiny_model import byte_tokenizer


@pytest.fixture(scope="module")
def stage_overrides(stage_overrides: dict[str, Any]) -> dict[str, Any]:
    """The tiny model embeds too, and was trained for vectors of 16."""
    more = {"actions": ("chat", "completions", "embeddings"), "embedding_dimensions": (16,)}
    models = [model | (more if "path" in model else {}) for model in stage_overrides["models"]]
    return stage_overrides | {"models": (*models, {"id": "embed", "upstream": "up", "actions": ("embeddings",)})}


@pytest.fixture
def client(stage: Stage) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{stage.url}/v1", api_key=stage.token(), max_retries=0) as client:
        yield client


def ids_of(text: str) -> list[int]:
    return list(byte_tokenizer().encode(text).ids)


def vectors(client: OpenAI, value: Any, **params: Any) -> list[list[float]]:
    return [row.embedding for row in client.embeddings.create(model="tiny", input=value, **params).data]


def test_token_ids_stand_for_the_text_that_they_are(client: OpenAI) -> None:
    texts = ["La esclusa", "El canal de Panamá"]
    expected = vectors(client, texts)
    assert vectors(client, [ids_of(text) for text in texts]) == [pytest.approx(one, abs=1e-5) for one in expected]
    assert vectors(client, ids_of(texts[0])) == [pytest.approx(expected[0], abs=1e-5)]
    assert vectors(client, texts[0]) == [pytest.approx(expected[0], abs=1e-5)]


def test_vectors_may_be_cut_to_a_size_that_the_model_was_trained_for(client: OpenAI) -> None:
    (whole,) = vectors(client, "hola")
    (short,) = vectors(client, "hola", dimensions=16)
    length = sum(value * value for value in whole[:16]) ** 0.5
    assert short == pytest.approx([value / length for value in whole[:16]], abs=1e-5)
    assert vectors(client, "hola", dimensions=len(whole)) == [pytest.approx(whole, abs=1e-6)]
    with pytest.raises(openai.BadRequestError) as refused:
        vectors(client, "hola", dimensions=17)
    assert (refused.value.param, refused.value.code) == ("dimensions", "invalid_value")
    assert "16" in str(refused.value.body)


def test_packed_vectors_are_the_same_numbers(client: OpenAI) -> None:
    plain = vectors(client, "hola", encoding_format="float")
    packed = client.embeddings.create(model="tiny", input="hola", encoding_format="base64").data[0].embedding
    raw = base64.b64decode(str(packed))
    assert struct.unpack(f"<{len(raw) // 4}f", raw) == pytest.approx(plain[0], abs=1e-6)


def test_tokens_are_counted(client: OpenAI) -> None:
    ids = ids_of("uno dos")
    assert client.embeddings.create(model="tiny", input=[ids, ids]).usage.prompt_tokens == 2 * len(ids)


@pytest.mark.parametrize(
    ("params", "param"),
    [
        ({"input": [10**6]}, "input"),
        ({"input": []}, "input"),
        ({"input": [[]]}, "input.0"),
        ({"input": ["a", ""]}, "input.1"),
        ({"input": "a", "dimensions": 0}, "dimensions"),
        ({"input": "a", "input_type": "query"}, "input_type"),
        ({"input": "a " * 40_000}, "input"),
    ],
)
def test_what_cannot_be_embedded_is_refused_by_name(client: OpenAI, params: dict[str, Any], param: str) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        client.post("/embeddings", body={"model": "tiny", **params}, cast_to=object)
    assert refused.value.param == param


def test_a_name_that_is_routed_embeds_nothing(client: OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        client.embeddings.create(model="auto", input="hola")
    assert (refused.value.code, refused.value.param) == ("unsupported_action", "model")


def test_an_upstream_gets_ids_and_dimensions_as_they_are(stage: Stage, client: OpenAI) -> None:
    client.embeddings.create(model="embed", input=[[1, 2], [3]], dimensions=3, encoding_format="float")
    sent = stage.upstream.seen[-1].body
    assert (sent["input"], sent["dimensions"]) == ([[1, 2], [3]], 3)
