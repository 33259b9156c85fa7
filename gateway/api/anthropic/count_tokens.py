"""`POST /v1/messages/count_tokens`: how many tokens a message would have, through the pipeline but through no model."""

from __future__ import annotations

from typing import ClassVar

import orjson
from pydantic import ValidationError
from starlette.types import Send

from gateway.api.anthropic.body import Prompted
from gateway.api.anthropic.dialect import MESSAGES
from gateway.api.anthropic.messages import Messages
from gateway.api.headers import answer_headers
from gateway.api.http.body import BodyReader
from gateway.api.http.errors import refusal_of
from gateway.api.http.refusing import respond
from gateway.api.inference import Inference
from gateway.api.render import ChatFormat
from gateway.flow.answer import Answer
from gateway.flow.pipeline import Pipeline
from gateway.flow.values import Action, ChatCount, TokenCount

PATH = f"{MESSAGES}/count_tokens"


class CountBody(Prompted):
    action: ClassVar[Action] = "tokenize"

    def to_request(self) -> ChatCount:
        return ChatCount(self.model, ignored_hints=self.hints(), **self.prompt())


class CountTokens(Messages):
    async def _whole(self, answer: Answer, send: Send) -> None:
        tokens = 0
        async for chunk in answer:
            if isinstance(chunk, TokenCount):
                tokens = chunk.tokens
        body = orjson.dumps({"input_tokens": tokens})
        await respond(send, body, answer_headers(answer.reserved, answer.bill))


def parse(value: object) -> ChatCount:
    """Raises `InvalidRequest` naming the first wrong field, never its value."""
    try:
        body = CountBody.model_validate(value)
    except ValidationError as error:
        raise refusal_of(error) from None
    return body.to_request()


def endpoint(pipeline: Pipeline, reader: BodyReader) -> Inference:
    return CountTokens(pipeline, reader, parse, ChatFormat())
