"""Ideas that were once written several times stand in one place."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MODULES = sorted((ROOT / "gateway").rglob("*.py"))


@pytest.mark.parametrize(
    ("pattern", "home"),
    [
        (r"object_pairs_hook", "gateway/documents/strict_json.py"),
        (r"yaml\.(parse|compose|safe_load|load)\(", "gateway/documents/located_yaml.py"),
        (r'"string_type": "text"', "gateway/documents/validation_messages.py"),
        (r"get_close_matches\(", "gateway/documents/near_names.py"),
        (r"class Objection\b", "gateway/errors.py"),
        (r"urlsafe_b64encode\(position", "gateway/storage/pagination.py"),
        (r'"invalid_cursor"', "gateway/storage/pagination.py"),
        (r"guard\.record\(", "gateway/admin/recording.py"),
    ],
    ids=[
        "strict JSON",
        "YAML",
        "kinds of validation errors",
        "nearest name",
        "objection",
        "cursor",
        "refusal of a cursor",
        "admin events",
    ],
)
def test_there_is_one(pattern: str, home: str) -> None:
    found = [str(path.relative_to(ROOT)) for path in MODULES if re.search(pattern, path.read_text(encoding="utf-8"))]
    assert found == [home]
