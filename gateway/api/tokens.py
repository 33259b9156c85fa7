"""`POST /tokenize` and `/detokenize`, in vLLM's form: the tokens of a prompt, and the text of tokens. No model runs."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

import orjson
from pydantic import Field
from starlette.types import Send

from gateway.api.chat import TemplateVariables
from gateway.api.chat_messages import ChatMessage, messages_of
from gateway.api.headers import answer_headers
from gateway.api.http.body import BodyReader
from gateway.api.http.refusing import respond
from gateway.api.inference import Inference
from gateway.api.prompts import PromptText, TokenIds
from gateway.api.render import ChatFormat
from gateway.api.schemas import AskingBody, Name, requested
from gateway.api.tool_params import MAX_TOOLS, FunctionTool, tools_of
from gateway.errors import InvalidRequest
from gateway.flow.answer import Answer
from gateway.flow.pipeline import Pipeline
from gateway.flow.values import Action, ChatCount, CompletionCount, ModelRequest, TokenCount

TOKENIZE_PATHS = ("/tokenize", "/v1/tokenize")
DETOKENIZE_PATHS = ("/detokenize", "/v1/detokenize")


class TokenizeBody(AskingBody):
    """Of a `prompt`, or of `messages` through the model's chat template."""

    action: ClassVar[Action] = "tokenize"
    model: Name
    prompt: PromptText | None = None
    messages: Annotated[list[ChatMessage], Field(min_length=1, max_length=2048, fail_fast=True)] | None = None
    tools: Annotated[list[FunctionTool], Field(max_length=MAX_TOOLS, fail_fast=True)] | None = None
    chat_template_kwargs: TemplateVariables | None = None
    add_generation_prompt: bool | None = None
    """Of `messages`; true unless it is false."""
    add_special_tokens: bool | None = None
    """Of a `prompt`; true unless it is false."""
    return_token_strs: bool | None = None

    def to_request(self) -> ChatCount | CompletionCount:
        if (self.prompt is None) == (self.messages is None):
            raise InvalidRequest(
                "Exactly one of `prompt` and `messages` is required.",
                code="missing_required_parameter" if self.prompt is None else "invalid_value",
                param="prompt",
            )
        tells_texts = bool(self.return_token_strs)
        if self.prompt is not None:
            special = self.add_special_tokens is not False
            return CompletionCount(self.model, (self.prompt,), adds_special_tokens=special, tells_texts=tells_texts)
        variables = self.chat_template_kwargs
        return ChatCount(
            self.model,
            messages_of(self.messages or ()),
            tools_of(self.tools or ()),
            template_kwargs={} if variables is None else variables.model_dump(exclude_none=True),
            opens_answer=self.add_generation_prompt is not False,
            tells_texts=tells_texts,
        )


class DetokenizeBody(AskingBody):
    action: ClassVar[Action] = "tokenize"
    model: Name
    tokens: TokenIds

    def to_request(self) -> CompletionCount:
        return CompletionCount(self.model, (tuple(self.tokens),), reads_back=True)


class Tokens(Inference):
    async def _whole(self, answer: Answer, send: Send) -> None:
        counted = TokenCount(0)
        async for chunk in answer:
            if isinstance(chunk, TokenCount):
                counted = chunk
        body = self._body(answer, counted)
        await respond(send, orjson.dumps(body), answer_headers(answer.reserved, answer.bill))

    def _body(self, answer: Answer, counted: TokenCount) -> dict[str, Any]:
        return {
            "count": counted.tokens,
            "max_model_len": answer.reserved.served.context_window,
            "tokens": list(counted.token_ids),
            "token_strs": None if counted.texts is None else list(counted.texts),
        }


class Detokenized(Tokens):
    def _body(self, answer: Answer, counted: TokenCount) -> dict[str, Any]:
        del answer
        return {"prompt": counted.text}


def parse_tokenize(value: object) -> ModelRequest:
    return requested(TokenizeBody, value)


def parse_detokenize(value: object) -> ModelRequest:
    return requested(DetokenizeBody, value)


def endpoints(pipeline: Pipeline, reader: BodyReader) -> dict[str, Inference]:
    """By path."""
    tokenize: Inference = Tokens(pipeline, reader, parse_tokenize, ChatFormat())
    detokenize: Inference = Detokenized(pipeline, reader, parse_detokenize, ChatFormat())
    return dict.fromkeys(TOKENIZE_PATHS, tokenize) | dict.fromkeys(DETOKENIZE_PATHS, detokenize)
