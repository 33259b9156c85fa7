"""`POST /v1/moderations`: what the guardrails find in texts, in OpenAI's form and through the same pipeline.

The categories are ours: personal data, secrets, attempts to steer a model. OpenAI's own are null: nobody has looked.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

import orjson
from pydantic import Field
from starlette.types import Send

from gateway.api.bounds import MAX_TEXT
from gateway.api.headers import answer_headers
from gateway.api.http.body import BodyReader
from gateway.api.http.refusing import respond
from gateway.api.inference import Inference
from gateway.api.render import ChatFormat
from gateway.api.schemas import AskingBody, Name, requested
from gateway.api.structured import Strict
from gateway.flow.answer import Answer
from gateway.flow.pipeline import Pipeline
from gateway.flow.values import Action, ModelRequest, ModerationRequest, Verdicts

PATH = "/v1/moderations"
MODEL = "esclusa-guardrails"
MAX_TEXTS = 256
Moderated = Annotated[str, Field(max_length=MAX_TEXT)]
OURS = ("personal_data", "secrets", "prompt_injection")
OPENAIS = (
    *("harassment", "harassment/threatening", "hate", "hate/threatening", "illicit", "illicit/violent", "self-harm"),
    *("self-harm/instructions", "self-harm/intent", "sexual", "sexual/minors", "violence", "violence/graphic"),
)


class TextInput(Strict):
    type: Literal["text"]
    text: Moderated


class ModerationBody(AskingBody):
    action: ClassVar[Action] = "moderations"
    model: Name = MODEL
    input: Moderated | Annotated[list[Moderated | TextInput], Field(min_length=1, max_length=MAX_TEXTS, fail_fast=True)]
    user: Annotated[str, Field(max_length=256)] | None = None

    def to_request(self) -> ModerationRequest:
        inputs = [self.input] if isinstance(self.input, str) else self.input
        texts = tuple([one if isinstance(one, str) else one.text for one in inputs])
        # The names of OpenAI's own models stand in every client's defaults.
        model = MODEL if self.model.startswith(("omni-moderation", "text-moderation")) else self.model
        return ModerationRequest(model, texts, user_label=self.user)


class Moderations(Inference):
    async def _whole(self, answer: Answer, send: Send) -> None:
        found: tuple[Mapping[str, Mapping[str, float]], ...] = ()
        async for chunk in answer:
            if isinstance(chunk, Verdicts):
                found = chunk.texts
        body = {
            "id": f"modr-{answer.reserved.request_id.hex}",
            "model": answer.reserved.served.id,
            "results": [result(groups) for groups in found],
        }
        await respond(send, orjson.dumps(body), answer_headers(answer.reserved, answer.bill))


def result(groups: Mapping[str, Mapping[str, float]]) -> dict[str, Any]:
    """`groups`: of each of our categories the kinds that were found and how sure each is."""
    nobody: dict[str, Any] = dict.fromkeys(OPENAIS)
    return {
        "flagged": any(groups.values()),
        "categories": {name: bool(groups.get(name)) for name in OURS} | nobody,
        "category_scores": {name: max(groups.get(name, {}).values(), default=0.0) for name in OURS} | nobody,
        "category_applied_input_types": {name: ["text"] for name in OURS},
        "x_esclusa": {"kinds": sorted(kind for kinds in groups.values() for kind in kinds)},
    }


def parse(value: object) -> ModelRequest:
    return requested(ModerationBody, value)


def endpoint(pipeline: Pipeline, reader: BodyReader) -> Inference:
    return Moderations(pipeline, reader, parse, ChatFormat())
