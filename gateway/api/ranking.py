"""`POST /v1/rerank` and `/v1/score`: how near texts are, by the embeddings of a sentence encoder.

Jina's and Cohere's form of the one, vLLM's of the other, through the same pipeline as the embeddings that they are made
of: the same right, limits, guardrails and record. Nearness is the cosine of two vectors.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Annotated, Any, ClassVar

import numpy as np
import orjson
from pydantic import Field
from starlette.types import Send

from gateway.api.headers import answer_headers
from gateway.api.http.body import BodyReader
from gateway.api.http.refusing import respond
from gateway.api.inference import Inference
from gateway.api.prompts import PromptText
from gateway.api.render import ChatFormat, extension
from gateway.api.schemas import AskingBody, Name, Whole, requested
from gateway.api.structured import Strict
from gateway.errors import InvalidRequest
from gateway.flow.answer import Answer
from gateway.flow.pipeline import Pipeline
from gateway.flow.stages import Reserved
from gateway.flow.values import Action, ModelRequest, RankRequest, Usage, Vectors

RERANK_PATHS = ("/v1/rerank", "/v2/rerank", "/rerank")
SCORE_PATHS = ("/v1/score", "/score")
MAX_DOCUMENTS = 1000
Texts = Annotated[list[PromptText], Field(min_length=1, max_length=MAX_DOCUMENTS, fail_fast=True)]


class Document(Strict):
    text: PromptText


class RerankBody(AskingBody):
    action: ClassVar[Action] = "embeddings"
    model: Name
    query: PromptText
    documents: Annotated[list[PromptText | Document], Field(min_length=1, max_length=MAX_DOCUMENTS, fail_fast=True)]
    top_n: Annotated[Whole, Field(ge=0, le=MAX_DOCUMENTS)] | None = None
    """So many of the nearest; unset or 0: all."""
    return_documents: bool | None = None
    user: Annotated[str, Field(max_length=256)] | None = None

    def to_request(self) -> RankRequest:
        documents = [document if isinstance(document, str) else document.text for document in self.documents]
        return RankRequest(
            self.model,
            (self.query, *documents),
            queries=1,
            most=self.top_n or None,
            tells_documents=self.return_documents is not False,
            user_label=self.user,
        )


class ScoreBody(AskingBody):
    action: ClassVar[Action] = "embeddings"
    model: Name
    text_1: PromptText | Texts
    text_2: PromptText | Texts
    """Of as many texts as `text_1`, or each compared with its only one."""
    user: Annotated[str, Field(max_length=256)] | None = None

    def to_request(self) -> RankRequest:
        first = [self.text_1] if isinstance(self.text_1, str) else self.text_1
        second = [self.text_2] if isinstance(self.text_2, str) else self.text_2
        if len(first) not in (1, len(second)):
            raise InvalidRequest(
                "`text_1` must be one text, or as many as `text_2`.", code="invalid_value", param="text_1"
            )
        return RankRequest(self.model, (*first, *second), queries=len(first), user_label=self.user)


class Ranking(Inference):
    async def _whole(self, answer: Answer, send: Send) -> None:
        vectors: Sequence[Sequence[float]] = ()
        async for chunk in answer:
            if isinstance(chunk, Vectors):
                vectors = chunk.vectors
        reserved, request = answer.reserved, answer.reserved.request
        assert isinstance(request, RankRequest)
        scores = await asyncio.to_thread(cosines, vectors, request.queries)
        body = self._body(reserved, request, scores, answer.bill.usage)
        body["x_esclusa"] = extension(reserved, answer.bill, None)
        await respond(send, orjson.dumps(body), answer_headers(reserved, answer.bill))

    def _body(self, reserved: Reserved, request: RankRequest, scores: list[float], usage: Usage) -> dict[str, Any]:
        raise NotImplementedError


class Reranking(Ranking):
    def _body(self, reserved: Reserved, request: RankRequest, scores: list[float], usage: Usage) -> dict[str, Any]:
        order = sorted(range(len(scores)), key=lambda index: -scores[index])[: request.most]
        results: list[dict[str, Any]] = [{"index": index, "relevance_score": scores[index]} for index in order]
        if request.tells_documents:
            for result in results:
                result["document"] = {"text": request.inputs[1 + result["index"]]}
        return {
            "id": f"rerank-{reserved.request_id.hex}",
            "model": reserved.served.id,
            "usage": {"prompt_tokens": usage.prompt_tokens, "total_tokens": usage.prompt_tokens},
            "results": results,
        }


class Scoring(Ranking):
    def _body(self, reserved: Reserved, request: RankRequest, scores: list[float], usage: Usage) -> dict[str, Any]:
        del request
        return {
            "id": f"score-{reserved.request_id.hex}",
            "object": "list",
            "created": int(reserved.context.received_at.timestamp()),
            "model": reserved.served.id,
            "data": [{"index": index, "object": "score", "score": score} for index, score in enumerate(scores)],
            "usage": {
                "prompt_tokens": usage.prompt_tokens,
                "completion_tokens": 0,
                "total_tokens": usage.prompt_tokens,
            },
        }


def cosines(vectors: Sequence[Sequence[float]], queries: int) -> list[float]:
    """Of each text behind the queries with its query, or with the only one."""
    rows = np.asarray(vectors, dtype=np.float64)
    rows /= np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12)
    asked, others = rows[:queries], rows[queries:]
    return [float(score) for score in (asked * others).sum(axis=1)]


def parse_rerank(value: object) -> ModelRequest:
    return requested(RerankBody, value)


def parse_score(value: object) -> ModelRequest:
    return requested(ScoreBody, value)


def endpoints(pipeline: Pipeline, reader: BodyReader) -> dict[str, Inference]:
    """By path."""
    rerank: Inference = Reranking(pipeline, reader, parse_rerank, ChatFormat())
    score: Inference = Scoring(pipeline, reader, parse_score, ChatFormat())
    return dict.fromkeys(RERANK_PATHS, rerank) | dict.fromkeys(SCORE_PATHS, score)
