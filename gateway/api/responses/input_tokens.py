"""`POST /v1/responses/input_tokens`: how many tokens the prompt of a response has, stored history included."""

from __future__ import annotations

from dataclasses import fields, replace

import orjson
from starlette.types import Send

from gateway.api.headers import answer_headers
from gateway.api.http.body import BodyReader
from gateway.api.http.refusing import respond
from gateway.api.inference import Inference
from gateway.api.responses.body import parse
from gateway.api.responses.create import CreateResponse
from gateway.api.responses.kept import Stores
from gateway.api.responses.request import ResponsesCount
from gateway.flow.answer import Answer
from gateway.flow.pipeline import Pipeline
from gateway.flow.values import GenerationParams, TokenCount

PATH = "/v1/responses/input_tokens"


class CountInput(CreateResponse):
    async def _whole(self, answer: Answer, send: Send) -> None:
        tokens = 0
        async for chunk in answer:
            if isinstance(chunk, TokenCount):
                tokens = chunk.tokens
        body = orjson.dumps({"object": "response.input_tokens", "input_tokens": tokens})
        await respond(send, body, answer_headers(answer.reserved, answer.bill))


def parse_count(value: object) -> ResponsesCount:
    """The body of a response; what steers the answer is of no effect. Raises as `parse`."""
    asked = parse(value)
    plain = replace(asked, stream=False, params=GenerationParams())
    return ResponsesCount(**{one.name: getattr(plain, one.name) for one in fields(plain)})


def endpoint(pipeline: Pipeline, reader: BodyReader, stores: Stores) -> Inference:
    return CountInput(pipeline, reader, stores, parse_count)
