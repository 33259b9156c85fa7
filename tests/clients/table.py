"""`python -m tests.clients.table`: writes the table of `docs/reference/clients.md` from what the clients have said."""

from __future__ import annotations

import json
from pathlib import Path

RESULTS = Path(__file__).parent / ".results"
PAGE = Path(__file__).parents[2] / "docs/reference/clients.md"
BEGIN, END = "<!-- table: begin -->", "<!-- table: end -->"


def rows() -> list[str]:
    found: dict[tuple[str, str], list[str]] = {}
    for file in sorted(RESULTS.glob("*.jsonl")):
        for line in file.read_text(encoding="utf-8").splitlines():
            said = json.loads(line)
            works = found.setdefault((said["client"], said["version"]), [])
            works.append(said["feature"] if said["ok"] else f"**fails: {said['feature']}**")
    return [f"| {client} | {version} | {', '.join(works)} |" for (client, version), works in sorted(found.items())]


def main() -> None:
    page = PAGE.read_text(encoding="utf-8")
    before, after = page[: page.index(BEGIN) + len(BEGIN)], page[page.index(END) :]
    head = ["", "", "| client | version | what was run and works |", "|---|---|---|"]
    PAGE.write_text("\n".join([before, *head[1:], *rows(), "", after]), encoding="utf-8")


if __name__ == "__main__":
    main()
