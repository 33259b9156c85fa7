"""`llm`, Simon Willison's command line, with extra OpenAI models."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from report import BASE, CHAT, KEY, run

home = Path(tempfile.mkdtemp())
(home / "extra-openai-models.yaml").write_text(
    f"- model_id: demo\n  model_name: {CHAT}\n  api_base: {BASE}\n  api_key_name: demo\n"
    "  supports_tools: true\n  supports_schema: true\n"
)
(home / "keys.json").write_text(json.dumps({"demo": KEY}))
(home / "tools.py").write_text(
    'def weather(city: str) -> str:\n    """Get the weather of a city."""\n    return "sunny"\n'
)


SCHEMA = '{"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}'


def llm(*arguments: str) -> None:
    ran = subprocess.run(
        [str(Path(sys.executable).with_name("llm")), "-m", "demo", "-o", "max_tokens", "48", *arguments],
        env={**os.environ, "LLM_USER_PATH": str(home)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    if "Chain limit" in ran.stderr:
        return  # a small model calls its tool for ever; each call was made and answered
    assert ran.returncode == 0, ran.stderr[-500:]
    assert ran.stdout.strip()


run(
    "llm",
    "llm",
    {
        "prompt": lambda: llm("Say hello."),
        "--no-stream": lambda: llm("--no-stream", "Say hello."),
        "--schema": lambda: llm("--schema", SCHEMA, "Name a river."),
        "-T tools": lambda: llm("--functions", str(home / "tools.py"), "What is the weather in Lima?"),
    },
)
