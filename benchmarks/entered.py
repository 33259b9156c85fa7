"""A pytest plugin for `structure.py`: which files and functions of this repository the call of one test enters.

Every thread that starts after the plugin is watched: the event loop, its helpers and the engine's thread. The thread of
the test is not, for it is the client. The test runs once before, so that nothing is built in the run that counts.
"""

from __future__ import annotations

import json
import os
import threading
import time
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest

PACKAGES = tuple(str(Path(package).resolve()) + os.sep for package in ("gateway", "engine", "kernels"))
AFTERWARDS_S = 0.3
"""The settlement and the audit record of a request follow its answer."""

_entered: set[CodeType] = set()
_counting = False


def _note(frame: FrameType, event: str, _argument: Any) -> None:
    if _counting and event == "call":
        _entered.add(frame.f_code)


def pytest_configure() -> None:
    threading.setprofile(_note)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool:
    global _counting
    arguments = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}
    pyfuncitem.obj(**arguments)
    time.sleep(AFTERWARDS_S)
    _counting = True
    pyfuncitem.obj(**arguments)
    time.sleep(AFTERWARDS_S)
    _counting = False
    ours = {(code.co_filename, code.co_qualname) for code in _entered if code.co_filename.startswith(PACKAGES)}
    named = {(file, name) for file, name in ours if not name.endswith(">")}
    found = {"files": len({file for file, _ in ours}), "functions": len(named)}
    Path(os.environ["ENTERED_FILE"]).write_text(json.dumps(found), encoding="utf-8")
    return True
