"""instructor, in its modes for OpenAI's API and for Anthropic's."""

from __future__ import annotations

import instructor
from anthropic import Anthropic
from openai import OpenAI
from pydantic import BaseModel
from report import BASE, CHAT, KEY, URL, run


class River(BaseModel):
    """A river."""

    name: str


ASK = [{"role": "user", "content": "Answer in JSON: the name of a river of Colombia, such as Magdalena."}]


def in_mode(mode: instructor.Mode) -> None:
    client = instructor.from_openai(OpenAI(base_url=BASE, api_key=KEY), mode=mode)
    found = client.chat.completions.create(
        model=CHAT, response_model=River, messages=ASK, max_tokens=96, temperature=0, max_retries=2
    )
    assert found.name


def partial() -> None:
    client = instructor.from_openai(OpenAI(base_url=BASE, api_key=KEY), mode=instructor.Mode.JSON_SCHEMA)
    found = list(client.chat.completions.create_partial(model=CHAT, response_model=River, messages=ASK, max_tokens=64))
    assert found


def responses() -> None:
    client = instructor.from_openai(OpenAI(base_url=BASE, api_key=KEY), mode=instructor.Mode.RESPONSES_TOOLS)
    assert client.responses.create(model=CHAT, response_model=River, input=ASK, max_output_tokens=96).name


def anthropic() -> None:
    client = instructor.from_anthropic(Anthropic(base_url=URL, api_key=KEY), mode=instructor.Mode.ANTHROPIC_TOOLS)
    assert client.messages.create(model=CHAT, response_model=River, messages=ASK, max_tokens=96).name


run(
    "instructor",
    "instructor",
    {
        "TOOLS": lambda: in_mode(instructor.Mode.TOOLS),
        "TOOLS_STRICT": lambda: in_mode(instructor.Mode.TOOLS_STRICT),
        "JSON": lambda: in_mode(instructor.Mode.JSON),
        "JSON_SCHEMA": lambda: in_mode(instructor.Mode.JSON_SCHEMA),
        "MD_JSON": lambda: in_mode(instructor.Mode.MD_JSON),
        "partial": partial,
        "RESPONSES_TOOLS": responses,
        "ANTHROPIC_TOOLS": anthropic,
    },
)
