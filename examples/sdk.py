"""The official OpenAI SDK against a running gateway: a streamed answer, its model, and a refusal by its code.

    make serve                                                   # in another terminal
    export OPENAI_BASE_URL=http://127.0.0.1:8080/v1
    export OPENAI_API_KEY=$(.venv/bin/esclusa token mint --sub u-7 --role employee --department sales)
    .venv/bin/python examples/sdk.py "What is a lock of a canal?"

`token mint` makes tokens of the development issuer. In a company the key is the caller's own OIDC access token, or the
API key of a service account: docs/guides/identity.md.
"""

from __future__ import annotations

import sys

from openai import APIStatusError, OpenAI


def ask(client: OpenAI, question: str, model: str) -> None:
    streaming = client.chat.completions.with_raw_response.create(
        model=model,
        messages=[{"role": "user", "content": question}],
        max_tokens=64,
        stream=True,
        stream_options={"include_usage": True},
    )
    print(f"[{streaming.headers['x-esclusa-model']}, request {streaming.headers['x-request-id']}]")
    for chunk in streaming.parse():
        if chunk.choices:
            print(chunk.choices[0].delta.content or "", end="", flush=True)
        if chunk.usage is not None:
            print(f"\n[{chunk.usage.prompt_tokens} tokens in, {chunk.usage.completion_tokens} out]")


def main(question: str = "Say hello in three languages.", model: str = "auto") -> int:
    with OpenAI() as client:  # OPENAI_BASE_URL and OPENAI_API_KEY
        try:
            ask(client, question, model)
        except APIStatusError as refused:
            # Every refusal has a code for programs, and a message and a hint for people.
            error = refused.body if isinstance(refused.body, dict) else {}
            print(f"{refused.status_code} {refused.code}: {error.get('message')}", file=sys.stderr)
            if error.get("hint"):
                print(f"hint: {error['hint']}", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
