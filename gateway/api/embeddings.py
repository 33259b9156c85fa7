"""`POST /v1/embeddings`: through the same pipeline; one chunk carries all vectors."""

from __future__ import annotations

import base64
import struct
from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Literal

import orjson
from pydantic import Field
from starlette.types import Send

from gateway.api.headers import answer_headers
from gateway.api.http.body import BodyReader
from gateway.api.http.refusing import respond
from gateway.api.inference import Inference
from gateway.api.prompts import Prompts, prompts_of
from gateway.api.render import ChatFormat, extension
from gateway.api.schemas import AskingBody, Name, Whole, requested
from gateway.errors import InvalidRequest
from gateway.flow.answer import Answer
from gateway.flow.pipeline import Pipeline
from gateway.flow.values import Action, EmbeddingRequest, ModelRequest, Vectors

PATH = "/v1/embeddings"
MAX_INPUT_SIZE = 4_000_000
"""Characters and token ids of all inputs together."""


class EmbeddingBody(AskingBody):
    action: ClassVar[Action] = "embeddings"
    model: Name
    input: Prompts
    """A text, token ids, or a list of either: one vector for each."""
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Annotated[Whole, Field(ge=1, le=65_536)] | None = None
    user: Annotated[str, Field(max_length=256)] | None = None

    def to_request(self) -> EmbeddingRequest:
        inputs = prompts_of(self.input)
        if sum(map(len, inputs)) > MAX_INPUT_SIZE:
            raise InvalidRequest(
                "The inputs are too long for one request.",
                code="too_many_values",
                param="input",
                hint="send them in several requests",
            )
        return EmbeddingRequest(
            self.model,
            inputs,
            base64_vectors=self.encoding_format == "base64",
            dimensions=self.dimensions,
            user_label=self.user,
        )


def parse(value: object) -> ModelRequest:
    return requested(EmbeddingBody, value)


class Embeddings(Inference):
    async def _whole(self, answer: Answer, send: Send) -> None:
        vectors: Sequence[Sequence[float]] = ()
        async for chunk in answer:
            if isinstance(chunk, Vectors):
                vectors = chunk.vectors
        reserved, bill = answer.reserved, answer.bill
        packs = isinstance(reserved.request, EmbeddingRequest) and reserved.request.base64_vectors
        encode = packed if packs else list
        body: dict[str, Any] = {
            "object": "list",
            "data": [
                {"object": "embedding", "index": index, "embedding": encode(vector)}
                for index, vector in enumerate(vectors)
            ],
            "model": reserved.served.id,
            "usage": {"prompt_tokens": bill.usage.prompt_tokens, "total_tokens": bill.usage.prompt_tokens},
            "x_esclusa": extension(reserved, bill, None),
        }
        await respond(send, orjson.dumps(body), answer_headers(reserved, bill))


def packed(vector: Sequence[float]) -> str:
    """Base64 of little-endian 32-bit floats: what the OpenAI SDK asks for by default."""
    return base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode()


def endpoint(pipeline: Pipeline, reader: BodyReader) -> Inference:
    return Embeddings(pipeline, reader, parse, ChatFormat())
