"""What the tree promises: short files, no grab-bag names, nothing done at import, a name that transformers survives."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("gateway", "engine", "kernels")
MODULES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
MAX_LINES = 400
GRAB_BAGS = {"utils", "helpers", "common", "misc"}


def dotted(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def run_python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=240, check=False
    )


def test_no_module_outgrows_one_screenful_of_nouns() -> None:
    long = {dotted(path): count for path in MODULES if (count := len(path.read_text().splitlines())) > MAX_LINES}
    assert not long


def test_no_module_is_a_grab_bag() -> None:
    assert not [dotted(path) for path in MODULES if path.stem in GRAB_BAGS]


def test_every_module_says_what_it_owns() -> None:
    assert not [dotted(path) for path in MODULES if not path.read_text().lstrip().startswith('"""')]


def test_every_package_says_that_it_is_typed() -> None:
    assert not [package for package in PACKAGES if not (ROOT / package / "py.typed").exists()]


def test_importing_the_gateway_opens_no_socket_and_reads_no_environment() -> None:
    names = [dotted(path) for path in MODULES if dotted(path).startswith("gateway") and path.stem != "__main__"]
    code = f"""
import os, socket, importlib
def refuse(*args, **kwargs):
    raise AssertionError("a module did I/O at import")
socket.socket.connect = refuse
before = dict(os.environ)
for name in {names!r}:
    importlib.import_module(name)
assert dict(os.environ) == before, "a module changed the environment"
import logging
assert not logging.getLogger().handlers, "a module configured logging"
"""
    ended = run_python(code)
    assert ended.returncode == 0, ended.stderr


def test_the_gateway_and_the_scheduling_half_import_no_torch() -> None:
    code = """
import sys
import gateway.app, gateway.cli.main, engine
for name in gateway.cli.main.COMMANDS.values():
    __import__(name)
assert "torch" not in sys.modules, "importing the gateway imported torch"
"""
    ended = run_python(code)
    assert ended.returncode == 0, ended.stderr


def test_transformers_imports_with_our_kernels_package_first_on_the_path() -> None:
    ended = run_python("import kernels; assert not hasattr(kernels, '__version__'); import transformers.modeling_utils")
    assert ended.returncode == 0, ended.stderr


@pytest.mark.parametrize("word", ["TODO", "FIXME", "XXX"])
def test_nothing_is_left_for_later_in_the_product(word: str) -> None:
    assert not [dotted(path) for path in MODULES if word in path.read_text()]
