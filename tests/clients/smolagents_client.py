"""smolagents: a model, an agent that calls tools, and one that writes code."""

from __future__ import annotations

from report import BASE, CHAT, KEY, run
from smolagents import OpenAIServerModel, ToolCallingAgent, tool

model = OpenAIServerModel(model_id=CHAT, api_base=BASE, api_key=KEY, max_tokens=128, temperature=0)


@tool
def weather(city: str) -> str:
    """Get the weather of a city.

    Args:
        city: The city.
    """
    return f"sunny in {city}"


def say() -> None:
    assert model.generate([{"role": "user", "content": "Say hello."}]).content


def stream() -> None:
    assert "".join(part.content or "" for part in model.generate_stream([{"role": "user", "content": "Say hello."}]))


def calls() -> None:
    agent = ToolCallingAgent(tools=[weather], model=model, max_steps=1, verbosity_level=0)
    agent.run("What is the weather in Lima?")
    steps = [step for step in agent.memory.steps if getattr(step, "tool_calls", None)]
    assert steps, "the agent has called nothing"


run("smolagents", "smolagents", {"model": say, "stream": stream, "ToolCallingAgent": calls})
