"""Second half of `lock.sh`: put torch into a lock file of its own, and say in each file what it is."""

from __future__ import annotations

import sys
from pathlib import Path

HEAD = "# Written by deploy/lock.sh; do not edit. Python 3.11, Linux.\n"
TORCH_HEAD = HEAD + "# The CPU build for x86-64: another build of the same version has another hash (see lock.sh).\n"
FOLDER = Path(__file__).parent


def entries(text: str) -> list[str]:
    """One requirement with its hashes each, in the order of the file."""
    found: list[str] = []
    for line in text.splitlines():
        if line.startswith((" ", "\t")) and found:
            found[-1] += f"\n{line}"
        elif line and not line.startswith(("#", "-")):
            found.append(line)
    return found


def main(everything: Path, build: Path) -> None:
    locked = entries(everything.read_text(encoding="utf-8"))
    torch = [entry for entry in locked if entry.startswith("torch==")]
    others = [entry for entry in locked if entry not in torch]
    for name, head, lines in (
        ("requirements.lock", HEAD, others),
        ("torch-cpu.lock", TORCH_HEAD, torch),
        ("build.lock", HEAD, entries(build.read_text(encoding="utf-8"))),
    ):
        (FOLDER / name).write_text(head + "\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
