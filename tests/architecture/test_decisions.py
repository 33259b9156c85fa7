"""The pages of docs/adr: numbered without a gap, dated, with a status, all of one form, all in the index."""

from __future__ import annotations

import re
from datetime import date
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "docs" / "adr"
PAGES = sorted(path for path in FOLDER.glob("*.md") if path.name != "README.md")
STATUSES = ("accepted", "superseded by ")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_decision_has_number_date_status_and_its_four_parts(page: Path) -> None:
    title, _, dated, *_ = page.read_text().splitlines()
    assert title.startswith(f"# {page.name[:4]}. ")
    day, _, status = dated.partition(", ")
    date.fromisoformat(day)
    assert status.startswith(STATUSES)
    assert re.findall(r"^\*\*(\w+)\.\*\*", page.read_text(), re.MULTILINE) == ["Decided", "Why", "Price", "Rejected"]


def test_decisions_are_numbered_without_a_gap_and_all_in_the_index() -> None:
    assert [page.name[:4] for page in PAGES] == [f"{number:04}" for number in range(1, len(PAGES) + 1)]
    rows = re.findall(
        r"^\| \[(\d{4})\]\((.+?)\) \| (.+?) \| (.+?) \|$", (FOLDER / "README.md").read_text(), re.MULTILINE
    )
    heads = {page.name: page.read_text().splitlines()[:3] for page in PAGES}
    assert rows == [
        (name[:4], name, title.partition(". ")[2], dated.partition(", ")[2])
        for name, (title, _, dated) in heads.items()
    ]


def test_paths_that_decisions_name_exist() -> None:
    root = FOLDER.parents[1]
    named = {
        path
        for page in PAGES
        for path in re.findall(r"`((?:gateway|engine|kernels|docs|benchmarks)/[\w./-]+)`", page.read_text())
    }
    assert named
    assert not [path for path in named if not (root / path).exists()]
