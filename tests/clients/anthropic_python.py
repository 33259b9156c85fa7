"""The Anthropic SDK for Python."""

from __future__ import annotations

from anthropic import Anthropic
from report import CHAT, KEY, URL, run

client = Anthropic(base_url=URL, api_key=KEY, max_retries=0)
ASK = [{"role": "user", "content": "Name a river of Colombia."}]
WEATHER = {
    "name": "weather",
    "description": "Get the weather of a city",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}


def messages() -> None:
    assert client.messages.create(model=CHAT, max_tokens=16, messages=ASK).content[0].text


def stream() -> None:
    with client.messages.stream(model=CHAT, max_tokens=16, messages=ASK) as events:
        assert "".join(events.text_stream)
        assert events.get_final_message().usage.output_tokens > 0


def tools() -> None:
    answer = client.messages.create(
        model=CHAT, max_tokens=64, messages=ASK, tools=[WEATHER], tool_choice={"type": "any"}
    )
    assert answer.content[-1].type == "tool_use"


def count_tokens() -> None:
    assert client.messages.count_tokens(model=CHAT, messages=ASK).input_tokens > 5


def models() -> None:
    assert CHAT in [model.id for model in client.models.list()]


run(
    "anthropic-python",
    "anthropic",
    {"messages": messages, "stream": stream, "tools": tools, "count_tokens": count_tokens, "models": models},
)
