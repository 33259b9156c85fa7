"""`POST /v1/completions`: the older, template-free form; the same pipeline and the same rules."""

from __future__ import annotations

from gateway.api.http.body import BodyReader
from gateway.api.inference import Inference
from gateway.api.render import CompletionFormat
from gateway.api.schemas import CompletionBody, requested
from gateway.flow.pipeline import Pipeline
from gateway.flow.values import ModelRequest

PATH = "/v1/completions"


def parse(value: object) -> ModelRequest:
    return requested(CompletionBody, value)


def endpoint(pipeline: Pipeline, reader: BodyReader) -> Inference:
    return Inference(pipeline, reader, parse, CompletionFormat())
