"""Mutation testing of the rooms that decide: `make mutants`, for `MUTANTS_S` seconds (600 by default).

mutmut (extra `mutants`) changes one expression at a time in a copy of the committed tree and runs the tests of a room.
What no test notices is listed: a test is missing, or the change means the same. Not part of CI.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[1]
ROOMS: dict[str, tuple[list[str], list[str]]] = {
    "flow": (["gateway/flow/*"], ["tests/gateway/flow", "tests/gateway/guardrails/test_stages.py"]),
    "access": (["gateway/access/decision/*", "gateway/access/history/grants.py"], ["tests/gateway/access"]),
    "limits": (["gateway/limits/*"], ["tests/gateway/limits", "tests/property/test_limits_model.py"]),
    "audit": (["gateway/audit/*"], ["tests/gateway/audit"]),
}
CONFIGURATION = """
[tool.mutmut]
source_paths = ["gateway"]
only_mutate = {mutated}
do_not_mutate_patterns = ["\\\\b_?log\\\\.", "^\\\\s*raise "]
also_copy = ["engine", "kernels", "policies", "migrations", "README.md", "docs", "benchmarks", "deploy"]
pytest_add_cli_args_test_selection = {tests}
pytest_add_cli_args = ["-p", "no:cacheprovider", "-m", "not slow and not stores"]
process_isolation = "forkserver"
timeout_constant = 10.0
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("room", choices=ROOMS)
    parser.add_argument("--seconds", type=float, default=float(os.environ.get("MUTANTS_S", "600")))
    asked = parser.parse_args()
    mutated, tests = ROOMS[asked.room]
    with tempfile.TemporaryDirectory(prefix="esclusa-mutants-") as folder:
        tree = Path(folder) / "tree"
        subprocess.run(["git", "clone", "--quiet", str(ROOT), str(tree)], check=True)
        with (tree / "pyproject.toml").open("a", encoding="utf-8") as settings:
            settings.write(CONFIGURATION.format(mutated=quoted(mutated), tests=quoted(tests)))
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        mutmut = [sys.executable, "-m", "mutmut"]
        try:
            subprocess.run([*mutmut, "run"], cwd=tree, env=environment, timeout=asked.seconds, check=False)
        except subprocess.TimeoutExpired:
            sys.stderr.write(f"\nstopped after {asked.seconds:.0f} s; what was tried so far:\n")
        results = subprocess.run(
            [*mutmut, "results", "--all", "true"],
            cwd=tree,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
    found = re.findall(r"^\s*(\S+): (.+)$", results.stdout, re.MULTILINE)
    counts = Counter(state for _, state in found)
    sys.stdout.write("".join(f"{name}\n" for name, state in found if state == "survived"))
    sys.stdout.write(f"{asked.room}: " + ", ".join(f"{count} {state}" for state, count in counts.most_common()) + "\n")
    return 0 if counts["killed"] else 1


def quoted(names: list[str]) -> str:
    return "[" + ", ".join(f'"{name}"' for name in names) + "]"


if __name__ == "__main__":
    raise SystemExit(main())
