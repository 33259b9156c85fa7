"""pydantic-ai, over chat and over the Responses API. Its Anthropic class does not run with the SDK of the same day."""

from __future__ import annotations

from pydantic import BaseModel
from pydantic_ai import Agent, NativeOutput, ToolOutput
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider
from report import BASE, CHAT, KEY, run

provider = OpenAIProvider(base_url=BASE, api_key=KEY)
chat, responses = OpenAIChatModel(CHAT, provider=provider), OpenAIResponsesModel(CHAT, provider=provider)
SHORT = {"max_tokens": 64, "temperature": 0.0}


class River(BaseModel):
    """A river."""

    name: str


def text(model: object) -> None:
    assert Agent(model, model_settings=SHORT).run_sync("Say hello.").output


def structured(model: object, kind: object) -> None:
    output = (
        Agent(model, output_type=kind, model_settings=SHORT, retries=2).run_sync("Name a river of Colombia.").output
    )
    assert isinstance(output, River)


def stream() -> None:
    async def ask() -> str:
        async with Agent(chat, model_settings=SHORT).run_stream("Say hello.") as result:
            return str(await result.get_output())

    import asyncio

    assert asyncio.run(ask())


run(
    "pydantic-ai",
    "pydantic-ai-slim",
    {
        "text": lambda: text(chat),
        "stream": stream,
        "default output_type (tools)": lambda: structured(chat, ToolOutput(River)),
        "NativeOutput": lambda: structured(chat, NativeOutput(River)),
        "responses text": lambda: text(responses),
        "responses output_type": lambda: structured(responses, ToolOutput(River)),
    },
)
