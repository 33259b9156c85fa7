"""A setting that nothing reads is a promise that nobody keeps: each is read somewhere outside of the settings."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gateway import settings as tree
from gateway.config_source import Section

GATEWAY = Path(tree.__file__).parent
SECTIONS = [kind for kind in vars(tree).values() if isinstance(kind, type) and issubclass(kind, Section)]
FIELDS = [(kind, name) for kind in SECTIONS if kind is not Section for name in kind.model_fields]
TREE = (GATEWAY / "settings.py", GATEWAY / "http_settings.py")
SOURCE = "\n".join(path.read_text() for path in GATEWAY.rglob("*.py") if path not in TREE)

DERIVED = "\n".join(path.read_text() for path in TREE)
"""Properties of the settings themselves, which put two of them together."""


@pytest.mark.parametrize(("kind", "name"), FIELDS, ids=[f"{kind.__name__}.{name}" for kind, name in FIELDS])
def test_every_setting_is_read(kind: type, name: str) -> None:
    read = re.search(rf"\.{name}\b|\"{name}\"", SOURCE) or re.search(rf"\bself\.{name}\b", DERIVED)
    assert read, f"nothing reads {kind.__name__}.{name}: remove it, or build it"
