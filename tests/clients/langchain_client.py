"""LangChain's OpenAI classes, with their defaults."""

from __future__ import annotations

from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAI, OpenAIEmbeddings
from pydantic import BaseModel
from report import BASE, CHAT, EMBEDDING, KEY, run

model = ChatOpenAI(model=CHAT, base_url=BASE, api_key=KEY, max_tokens=64, temperature=0)


class River(BaseModel):
    """A river."""

    name: str


@tool
def weather(city: str) -> str:
    """Get the weather of a city."""
    return f"sunny in {city}"


def structured(method: str) -> None:
    found = model.with_structured_output(River, method=method).invoke("Answer in JSON: name a river of Colombia.")
    assert isinstance(found, River)


def bind_tools() -> None:
    answer = model.bind_tools([weather], tool_choice="required").invoke("Weather in Lima?")
    assert answer.tool_calls[0]["name"] == "weather"


def conversation() -> None:
    from langchain_core.messages import AIMessage, HumanMessage, ToolMessage

    call = {"name": "weather", "args": {"city": "Lima"}, "id": "call_1", "type": "tool_call"}
    history = [
        HumanMessage("Weather in Lima?"),
        AIMessage(content="", tool_calls=[call]),
        ToolMessage("sunny", tool_call_id="call_1"),
    ]
    assert model.bind_tools([weather], tool_choice="none").invoke(history).content


run(
    "langchain-openai",
    "langchain-openai",
    {
        "invoke": lambda: model.invoke("Say hello.").content or 1 / 0,
        "stream": lambda: (
            "".join(chunk.text() if callable(chunk.text) else chunk.text for chunk in model.stream("Say hello."))
            or 1 / 0
        ),
        "structured function_calling": lambda: structured("function_calling"),
        "structured json_schema": lambda: structured("json_schema"),
        "structured json_mode": lambda: model.with_structured_output(None, method="json_mode").invoke("A JSON object."),
        "bind_tools": bind_tools,
        "tool results": conversation,
        "responses api": lambda: (
            ChatOpenAI(model=CHAT, base_url=BASE, api_key=KEY, max_tokens=32, use_responses_api=True)
            .invoke("Say hello.")
            .content
            or 1 / 0
        ),
        "OpenAI (completions)": lambda: (
            OpenAI(model=CHAT, base_url=BASE, api_key=KEY, max_tokens=8).invoke("One,") or 1 / 0
        ),
        "OpenAIEmbeddings (token ids)": lambda: OpenAIEmbeddings(
            model=EMBEDDING, base_url=BASE, api_key=KEY, check_embedding_ctx_length=False
        ).embed_documents(["a", "b"])[1][0],
    },
)
