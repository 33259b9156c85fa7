"""LlamaIndex with an OpenAI-like server."""

from __future__ import annotations

from llama_index.core.llms import ChatMessage
from llama_index.core.tools import FunctionTool
from llama_index.embeddings.openai_like import OpenAILikeEmbedding
from llama_index.llms.openai_like import OpenAILike
from pydantic import BaseModel
from report import BASE, CHAT, EMBEDDING, KEY, run

model = OpenAILike(
    model=CHAT, api_base=BASE, api_key=KEY, is_chat_model=True, is_function_calling_model=True,
    context_window=4096, max_tokens=64, temperature=0,
)  # fmt: skip
ASK = [ChatMessage(role="user", content="Name a river of Colombia.")]


class River(BaseModel):
    """A river."""

    name: str


def weather(city: str) -> str:
    """Get the weather of a city."""
    return f"sunny in {city}"


def structured() -> None:
    assert isinstance(model.as_structured_llm(River).chat(ASK).raw, River)


def tools() -> None:
    answer = model.chat_with_tools(
        [FunctionTool.from_defaults(weather)], user_msg="Weather in Lima?", tool_required=True
    )
    assert model.get_tool_calls_from_response(answer)[0].tool_name == "weather"


def embeddings() -> None:
    embed = OpenAILikeEmbedding(model_name=EMBEDDING, api_base=BASE, api_key=KEY)
    assert len(embed.get_text_embedding("a river")) == 384


run(
    "llama-index",
    "llama-index-llms-openai-like",
    {
        "chat": lambda: model.chat(ASK).message.content or 1 / 0,
        "complete": lambda: (
            OpenAILike(model=CHAT, api_base=BASE, api_key=KEY, max_tokens=8).complete("One, two,").text or 1 / 0
        ),
        "stream": lambda: "".join(part.delta or "" for part in model.stream_chat(ASK)) or 1 / 0,
        "structured": structured,
        "tools": tools,
        "embeddings": embeddings,
    },
)
