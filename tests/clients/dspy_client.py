"""DSPy: predictions, typed outputs, ReAct and its embedder."""

from __future__ import annotations

import dspy
from report import BASE, CHAT, EMBEDDING, KEY, run

dspy.configure(lm=dspy.LM(f"openai/{CHAT}", api_base=BASE, api_key=KEY, max_tokens=200, temperature=0.0, cache=False))


def weather(city: str) -> str:
    """Get the weather of a city."""
    return f"sunny in {city}"


def native_tools() -> None:
    lm = dspy.LM(f"openai/{CHAT}", api_base=BASE, api_key=KEY, max_tokens=64, cache=False)
    tool = {
        "type": "function",
        "function": {"name": "weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}},
    }
    assert lm("Weather in Lima?", tools=[tool], tool_choice="required")


run(
    "dspy",
    "dspy",
    {
        "Predict": lambda: dspy.Predict("question -> answer")(question="Name a river.").answer or 1 / 0,
        "JSONAdapter": lambda: (
            dspy.settings.lm.copy
            and dspy.JSONAdapter()(
                dspy.settings.lm, {}, dspy.Signature("question -> answer"), [], {"question": "Name a river."}
            )
        ),
        "tools": native_tools,
        "responses": lambda: (
            dspy.LM(f"openai/{CHAT}", api_base=BASE, api_key=KEY, max_tokens=200, cache=False, model_type="responses")(
                "Say hello."
            )
            or 1 / 0
        ),
        "Embedder": lambda: dspy.Embedder(f"openai/{EMBEDDING}", api_base=BASE, api_key=KEY)(["a"])[0],
    },
)
