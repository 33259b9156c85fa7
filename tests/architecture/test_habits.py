"""The workflow, the hooks and the Makefile say the same: nothing is checked in one place under another name."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
MAKEFILE = (ROOT / "Makefile").read_text()
TARGETS = set(re.findall(r"^([a-z]+):", MAKEFILE, re.MULTILINE))
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text()


def document(path: str) -> dict[str, Any]:
    return dict(yaml.safe_load((ROOT / path).read_text()))


def recipe(target: str) -> list[str]:
    """The commands of a target, without the folder of the tools."""
    found = re.search(rf"^{target}:.*\n((?:\t.*\n)+)", MAKEFILE, re.MULTILINE)
    assert found is not None
    return [line.strip().removeprefix("@").removeprefix("$(BIN)/") for line in found[1].splitlines()]


def made(path: str) -> list[str]:
    return re.findall(r"(?:^|run: )make (\w+)$", (ROOT / path).read_text(), re.MULTILINE)


def test_the_workflow_runs_make_targets_and_all_that_our_own_ci_runs() -> None:
    steps = [
        step["run"]
        for job in document(".github/workflows/ci.yml")["jobs"].values()
        for step in job["steps"]
        if "run" in step
    ]
    assert {step.split()[0] for step in steps} <= {"make", "sudo"}
    assert set(made(".ci/run")) <= set(made(".github/workflows/ci.yml")) <= TARGETS


def test_the_workflow_tries_the_pythons_from_the_oldest_admitted_on() -> None:
    tried = document(".github/workflows/ci.yml")["jobs"]["check"]["strategy"]["matrix"]["python"]
    oldest = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["requires-python"].removeprefix(">=")
    assert tried == [oldest, "3.12", "3.13", "3.14"]


@pytest.mark.parametrize("path", [".github/workflows/ci.yml", ".github/dependabot.yml", ".pre-commit-config.yaml"])
def test_what_hosts_read_names_no_address(path: str) -> None:
    assert not re.search(r"https?://|index-url", (ROOT / path).read_text())


def test_the_hooks_are_the_tools_of_lint_and_download_nothing() -> None:
    (local,) = document(".pre-commit-config.yaml")["repos"]
    assert local["repo"] == "local"
    assert {hook["language"] for hook in local["hooks"]} == {"system"}
    tools = [hook["entry"].removeprefix(".venv/bin/").split()[0] for hook in local["hooks"]]
    assert sorted(tools) == sorted(line.split()[0] for line in recipe("lint"))


def test_contributing_names_every_target() -> None:
    named = set(re.findall(r"^make (\w+)", CONTRIBUTING, re.MULTILINE))
    assert named <= TARGETS
    assert TARGETS - named <= {"serve", "check", "clean"}
