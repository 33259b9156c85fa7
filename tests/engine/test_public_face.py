from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import engine


def test_the_public_face_imports_no_torch() -> None:
    code = "import sys, engine; print([m for m in ('torch', 'transformers', 'llguidance') if m in sys.modules])"
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=root)
    assert done.stdout.strip() == "[]"


def test_everything_that_is_promised_exists() -> None:
    assert [name for name in engine.__all__ if not hasattr(engine, name)] == []
