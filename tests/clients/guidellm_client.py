"""guidellm: a benchmark of a few seconds."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from report import CHAT, KEY, URL, run


def benchmark() -> None:
    ran = subprocess.run(
        [
            str(Path(sys.executable).with_name("guidellm")), "run", "--disable-console",
            "--profile", "kind=synchronous",
            "--backend", f"kind=openai_http,target={URL},model={CHAT},api_key={KEY}",
            "--constraint", "kind=max_requests,count=3",
            "--tokenizer", f"kind=huggingface_auto,model={os.environ['ESCLUSA_TOKENIZER']}",
            "--data", "kind=synthetic_text,prompt_tokens=16,output_tokens=8", "--output", "kind=json,path=out.json",
        ],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stdout[-400:] + ran.stderr[-800:]


run("guidellm", "guidellm", {"benchmark synchronous": benchmark})
