"""`POST /v1/chat/completions`."""

from __future__ import annotations

from gateway.api.http.body import BodyReader
from gateway.api.inference import Inference
from gateway.api.render import ChatFormat
from gateway.api.schemas import ChatBody, requested
from gateway.flow.pipeline import Pipeline
from gateway.flow.values import ModelRequest

PATH = "/v1/chat/completions"


def parse(value: object) -> ModelRequest:
    return requested(ChatBody, value)


def endpoint(pipeline: Pipeline, reader: BodyReader) -> Inference:
    return Inference(pipeline, reader, parse, ChatFormat())
