"""outlines over an OpenAI-like server and over vLLM's extensions."""

from __future__ import annotations

from typing import Literal

import openai
import outlines
from pydantic import BaseModel
from report import BASE, CHAT, KEY, run

client = openai.OpenAI(base_url=BASE, api_key=KEY)


class River(BaseModel):
    name: str


def openai_like() -> object:
    return outlines.from_openai(client, CHAT)


def vllm() -> object:
    return outlines.from_vllm(client, CHAT)


run(
    "outlines",
    "outlines",
    {
        "from_openai text": lambda: openai_like()("Say hello.", max_tokens=8) or 1 / 0,
        "from_openai schema": lambda: River.model_validate_json(
            openai_like()("A river as JSON.", River, max_tokens=48)
        ),
        "from_vllm choice": lambda: ["yes", "no"].index(vllm()("Yes or no?", Literal["yes", "no"], max_tokens=4)),
        "from_vllm schema": lambda: River.model_validate_json(vllm()("A river as JSON.", River, max_tokens=48)),
        "from_vllm regex": lambda: int(vllm()("A number:", outlines.regex(r"[0-9]{3}"), max_tokens=8)),
    },
)
