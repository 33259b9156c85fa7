"""LiteLLM as a client."""

from __future__ import annotations

import os

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"

import litellm
from report import BASE, CHAT, EMBEDDING, KEY, URL, run

ASK = [{"role": "user", "content": "Name a river of Colombia."}]
TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}


def chat(prefix: str, base: str = BASE) -> None:
    answer = litellm.completion(model=f"{prefix}/{CHAT}", api_base=base, api_key=KEY, messages=ASK, max_tokens=16)
    assert answer.choices[0].message.content


def tools() -> None:
    answer = litellm.completion(
        model=f"openai/{CHAT}",
        api_base=BASE,
        api_key=KEY,
        messages=ASK,
        max_tokens=64,
        tools=[TOOL],
        tool_choice="required",
    )
    assert answer.choices[0].message.tool_calls


def overflow() -> None:
    try:
        litellm.completion(
            model=f"openai/{CHAT}", api_base=BASE, api_key=KEY, messages=[{"role": "user", "content": "word " * 6000}]
        )
    except litellm.ContextWindowExceededError:
        return
    raise AssertionError("not recognized as a context overflow")


run(
    "litellm",
    "litellm",
    {
        "openai/": lambda: chat("openai"),
        "hosted_vllm/": lambda: chat("hosted_vllm"),
        "anthropic/": lambda: chat("anthropic", URL),
        "tools": tools,
        "responses": lambda: (
            litellm.responses(
                model=f"openai/{CHAT}", api_base=BASE, api_key=KEY, input="Say hello.", max_output_tokens=16
            ).output
            or 1 / 0
        ),
        "embedding": lambda: litellm.embedding(
            model=f"openai/{EMBEDDING}", api_base=BASE, api_key=KEY, input=["a"]
        ).data[0],
        "ContextWindowExceededError": overflow,
    },
)
