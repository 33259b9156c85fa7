"""aider: one whole edit from the command line."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from report import BASE, CHAT, KEY, run


def edit() -> None:
    Path("hello.py").write_text("print('hello')\n")
    ran = subprocess.run(
        [
            str(Path(sys.executable).with_name("aider")), "--model", f"openai/{CHAT}", "--no-git", "--yes-always",
            "--no-check-update", "--no-show-model-warnings", "--no-analytics", "--map-tokens", "0", "--no-stream",
            "--message", "Say in one line what the file does; change nothing.", "hello.py",
        ],
        env={**os.environ, "OPENAI_API_BASE": BASE, "OPENAI_API_KEY": KEY, "LITELLM_LOCAL_MODEL_COST_MAP": "True"},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr[-500:]
    assert "Tokens:" in ran.stdout, ran.stdout[-800:]


run("aider", "aider-chat", {"--message": edit})
