"""The OpenAI SDK for Python."""

from __future__ import annotations

import asyncio
import json
import time

import openai
from openai import AsyncOpenAI, OpenAI
from pydantic import BaseModel
from report import BASE, CHAT, EMBEDDING, KEY, run

client = OpenAI(base_url=BASE, api_key=KEY, max_retries=0)
ASK = [{"role": "user", "content": "Name a river of Colombia."}]


class River(BaseModel):
    name: str


class Weather(BaseModel):
    """Get the weather of a city."""

    city: str


def chat() -> None:
    answer = client.chat.completions.create(model=CHAT, messages=ASK, max_tokens=16)
    assert answer.choices[0].message.content


def stream() -> None:
    with client.chat.completions.stream(model=CHAT, messages=ASK, max_tokens=256, temperature=0) as events:
        assert events.get_final_completion().choices[0].message.content


def parse() -> None:
    answer = client.chat.completions.parse(model=CHAT, messages=ASK, response_format=River, max_tokens=48)
    assert answer.choices[0].message.parsed


def tools() -> None:
    answer = client.chat.completions.parse(
        model=CHAT,
        messages=[{"role": "user", "content": "Weather in Lima?"}],
        tools=[openai.pydantic_function_tool(Weather)],
        tool_choice="required",
        parallel_tool_calls=False,
        max_tokens=64,
    )
    assert answer.choices[0].message.tool_calls[0].function.parsed_arguments.city


def asynchronous() -> None:
    async def ask() -> None:
        async with AsyncOpenAI(base_url=BASE, api_key=KEY) as other:
            answers = await asyncio.gather(
                *(other.chat.completions.create(model=CHAT, messages=ASK, max_tokens=8) for _ in range(4))
            )
            assert all(answer.choices[0].message.content for answer in answers)

    asyncio.run(ask())


def responses() -> None:
    answer = client.responses.create(model=CHAT, input="Name a river.", max_output_tokens=16)
    assert answer.output_text


def responses_stream() -> None:
    with client.responses.stream(model=CHAT, input="Name a river.", max_output_tokens=16) as events:
        kinds = [event.type for event in events]
    assert kinds[0] == "response.created"
    assert kinds[-1] in ("response.completed", "response.incomplete")


def responses_parse() -> None:
    answer = client.responses.parse(model=CHAT, input="Name a river.", text_format=River, max_output_tokens=48)
    assert answer.output_parsed.name is not None


def embeddings() -> None:
    rows = client.embeddings.create(model=EMBEDDING, input=["a river", "a lock"]).data
    assert [len(row.embedding) for row in rows] == [384, 384]


def completions() -> None:
    answer = client.completions.create(
        model=CHAT, prompt=["One, two,", "Uno, dos,"], max_tokens=4, echo=True, logprobs=1
    )
    assert len(answer.choices) == 2


def models() -> None:
    assert CHAT in [model.id for model in client.models.list()]


def moderations() -> None:
    assert client.moderations.create(input="mi DNI es 36796476H").results[0].flagged


def files_and_batches() -> None:
    body = {"model": CHAT, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4}
    line = json.dumps({"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": body}) + "\n"
    file = client.files.create(file=("in.jsonl", line.encode()), purpose="batch")
    batch = client.batches.create(input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h")
    for _ in range(120):
        batch = client.batches.retrieve(batch.id)
        if batch.status in ("completed", "failed", "expired", "cancelled"):
            break
        time.sleep(0.5)
    assert batch.status == "completed", batch.status
    assert '"custom_id"' in client.files.content(batch.output_file_id).text


run(
    "openai-python",
    "openai",
    {
        "chat": chat,
        "stream": stream,
        "parse": parse,
        "tools": tools,
        "async": asynchronous,
        "responses": responses,
        "responses stream": responses_stream,
        "responses parse": responses_parse,
        "embeddings": embeddings,
        "completions": completions,
        "models": models,
        "moderations": moderations,
        "batches": files_and_batches,
    },
)
