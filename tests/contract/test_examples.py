"""Every file of examples/ does what its first lines say, run as a reader would run it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.fakes.stage import Stage

ROOT = Path(__file__).parents[2]
COMMAND = "from gateway.cli.main import main; main()"  # what `esclusa` runs


def run(*command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": str(ROOT), **environment}
    return subprocess.run(
        [sys.executable, *command], cwd=ROOT, env=env, capture_output=True, text=True, timeout=240, check=False
    )


def sdk(stage: Stage, role: str) -> subprocess.CompletedProcess[str]:
    access = {"OPENAI_BASE_URL": f"{stage.url}/v1", "OPENAI_API_KEY": stage.token(role, sub="u-example")}
    return run("examples/sdk.py", "hola", "tiny", **access)


def test_the_sdk_example_streams_an_answer_and_names_its_model_and_tokens(stage: Stage) -> None:
    done = sdk(stage, "analyst")
    assert done.returncode == 0, done.stderr
    first, *_, last = done.stdout.splitlines()
    assert first.startswith("[tiny, request ")
    assert "tokens in, " in last
    assert stage.records(first.removesuffix("]").split()[-1])[-1]["outcome"] == "ok"


def test_the_sdk_example_shows_the_code_and_the_message_of_a_refusal(stage: Stage) -> None:
    done = sdk(stage, "auditor")
    assert done.returncode == 1
    assert done.stderr.startswith("403 model_not_permitted: ")


def test_the_policy_example_is_valid_and_its_own_tests_pass() -> None:
    checked = run("-c", COMMAND, "policy", "check", "examples/policy.yaml")
    assert checked.returncode == 0, checked.stdout + checked.stderr
    tested = run("-c", COMMAND, "policy", "test", "examples/policy.yaml")
    assert tested.stdout.splitlines()[-1] == "5 passed, 0 failed"


def test_the_offline_example_answers_each_prompt_and_keeps_to_the_form(tiny_model_path: Path) -> None:
    done = run("examples/offline_engine.py", str(tiny_model_path))
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stdout.splitlines() if " -> " in line]
    assert len(lines) >= 5
    assert lines[-1] in ("yes or no -> 'yes'", "yes or no -> 'no'")


def test_no_example_is_without_a_test() -> None:
    here = Path(__file__).read_text()
    examples = [path.name for path in (ROOT / "examples").iterdir() if path.is_file()]
    assert examples
    assert all(f"examples/{name}" in here for name in examples)
