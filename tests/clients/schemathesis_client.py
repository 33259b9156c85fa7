"""schemathesis: every operation of the description, fuzzed with a valid token."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from report import KEY, URL, run

CHECKS = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance"
LEFT_OUT = "/admin/v1/engines/.*"
"""Those that would stop the engines under the others."""
CASES = os.environ.get("ESCLUSA_FUZZ_CASES", "12")


def fuzz(*selection: str) -> None:
    ran = subprocess.run(
        [
            str(Path(sys.executable).with_name("schemathesis")), "run", f"{URL}/openapi.json", "--url", URL,
            "-H", f"Authorization: Bearer {KEY}", "--checks", CHECKS, "--max-examples", CASES,
            "--phases", "examples,fuzzing", "--request-timeout", "60", "--exclude-path-regex", LEFT_OUT,
            "--seed", "7", "--no-color", *selection,
        ],
        capture_output=True,
        text=True,
        timeout=270,
        check=False,
    )  # fmt: skip
    if told := os.environ.get("ESCLUSA_FUZZ_REPORT"):
        with Path(told).open("a") as file:
            file.write(ran.stdout)
    failures = re.findall(r"^- (.*)$", ran.stdout, re.MULTILINE)
    assert ran.returncode == 0, "; ".join(failures[:8]) or ran.stdout[-600:] + ran.stderr[-300:]


POST, PUT = ("--include-method", "POST"), ("--include-method", "PUT")
PUBLIC = "^/(v1|v2|rerank|score|tokenize|detokenize)"
run(
    "schemathesis",
    "schemathesis",
    {
        "GET and DELETE": lambda: fuzz("--include-method", "GET", "--include-method", "DELETE"),
        "POST of the public API": lambda: fuzz(*POST, "--include-path-regex", PUBLIC),
        "POST and PUT of the admin API": lambda: fuzz(*POST, *PUT, "--include-path-regex", "^/admin"),
    },
)
