"""`POST /v1/embeddings`: through the same pipeline; one chunk carries all vectors."""

from __future__ import annotations

import base64
import struct
from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Literal

import orjson
from pydantic import Field
from starlette.types import Send

from gateway.api.bounds import MAX_TEXT
from gateway.api.headers import answer_headers
from gateway.api.http.body import BodyReader
from gateway.api.inference import Inference, respond
from gateway.api.render import ChatFormat, extension
from gateway.api.schemas import AskingBody, Name, requested
from gateway.flow.answer import Answer
from gateway.flow.pipeline import Pipeline
from gateway.flow.values import Action, EmbeddingRequest, ModelRequest, Vectors

PATH = "/v1/embeddings"


class EmbeddingBody(AskingBody):
    action: ClassVar[Action] = "embeddings"
    model: Name
    input: (
        Annotated[str, Field(min_length=1, max_length=MAX_TEXT)]
        | Annotated[
            list[Annotated[str, Field(min_length=1, max_length=MAX_TEXT)]],
            Field(min_length=1, max_length=2048, fail_fast=True),
        ]
    )
    encoding_format: Literal["float", "base64"] | None = None
    user: Annotated[str, Field(max_length=256)] | None = None

    def to_request(self) -> EmbeddingRequest:
        inputs = (self.input,) if isinstance(self.input, str) else tuple(self.input)
        return EmbeddingRequest(
            self.model, inputs, base64_vectors=self.encoding_format == "base64", user_label=self.user
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
