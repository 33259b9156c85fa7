"""The OpenAI Agents SDK, over the Responses API (its default) and over chat."""

from __future__ import annotations

from agents import (
    Agent,
    ModelSettings,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    Runner,
    function_tool,
    handoff,
    set_tracing_disabled,
)
from openai import AsyncOpenAI
from report import BASE, CHAT, KEY, run

set_tracing_disabled(True)
client = AsyncOpenAI(base_url=BASE, api_key=KEY)
responses, chat = OpenAIResponsesModel(CHAT, client), OpenAIChatCompletionsModel(CHAT, client)
SHORT = ModelSettings(max_tokens=64, temperature=0.0)
called: list[str] = []


@function_tool
def weather(city: str) -> str:
    """Get the weather of a city."""
    called.append(city)
    return f"sunny in {city}"


def text(model: object) -> None:
    assert Runner.run_sync(
        Agent("a", instructions="Be brief.", model=model, model_settings=SHORT), "Say hello."
    ).final_output


def tools(model: object) -> None:
    called.clear()
    settings = ModelSettings(max_tokens=64, temperature=0.0, tool_choice="required")
    agent = Agent("a", model=model, tools=[weather], model_settings=settings, tool_use_behavior="stop_on_first_tool")
    Runner.run_sync(agent, "Weather in Lima?")
    assert called


def hands_over() -> None:
    second = Agent("second", instructions="Say hello.", model=responses, model_settings=SHORT)
    settings = ModelSettings(max_tokens=64, temperature=0.0, tool_choice="required")
    first = Agent(
        "first", instructions="Hand over.", model=responses, handoffs=[handoff(second)], model_settings=settings
    )
    assert Runner.run_sync(first, "Hello.", max_turns=4).last_agent.name == "second"


def stream() -> None:
    import asyncio

    async def ask() -> str:
        result = Runner.run_streamed(Agent("a", model=responses, model_settings=SHORT), "Say hello.")
        async for _ in result.stream_events():
            pass
        return str(result.final_output)

    assert asyncio.run(ask())


run(
    "openai-agents",
    "openai-agents",
    {
        "responses": lambda: text(responses),
        "responses stream": stream,
        "responses tools": lambda: tools(responses),
        "handoff": hands_over,
        "chat": lambda: text(chat),
        "chat tools": lambda: tools(chat),
    },
)
