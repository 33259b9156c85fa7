"""What redaction finds, writing by kind: the matrix of `docs/reference/redaction-matrix.md`; and what it costs.

python -m benchmarks.redaction            # print the matrix
python -m benchmarks.redaction --write    # put it into the documentation
python -m benchmarks.redaction --json     # counts per section
python -m benchmarks.redaction --cost     # microseconds per KiB of several kinds of text
"""

from __future__ import annotations

import argparse
import json
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from benchmarks.redaction_writings import NUMBERS, OTHERS, SECTIONS, Writing
from gateway.flow.values import ChatRequest, Message, Obligations
from gateway.guardrails.actions import actions_of
from gateway.guardrails.prompts import Prompts
from gateway.guardrails.scan import scan

PAGE = Path(__file__).parents[1] / "docs" / "reference" / "redaction-matrix.md"
BEGIN, END = "<!-- matrix: begin -->", "<!-- matrix: end -->"
KINDS = NUMBERS | OTHERS
WHOLE, ANNOUNCED, PART, MISSED, NONE = "●", "○", "◐", "**–**", " "


def share(before: str, value: str, after: str) -> float:
    """How much of the value is found where it stands between these texts, by its letters and digits."""
    spans = scan(before + value + after)
    signs = [len(before) + place for place, sign in enumerate(value) if sign.isalnum()]
    return sum(any(span.start <= place < span.end for span in spans) for place in signs) / len(signs)


def cell(kind: str, writing: Writing) -> str:
    if kind in OTHERS and not writing.all_kinds:
        return NONE
    word, value = KINDS[kind]
    before, written, after = writing.way(value)
    announced = share(f"El {word} del cliente es {before}", written, f"{after} y nada más.")
    if announced < 1:
        return PART if announced > 0.5 else MISSED
    alone = share(f"Queda anotado {before}", written, f"{after} y nada más.")
    return WHOLE if alone == 1 else ANNOUNCED


def sections() -> Iterator[tuple[str, list[tuple[str, list[str]]]]]:
    for title, writings in SECTIONS.items():
        yield title, [(writing.name, [cell(kind, writing) for kind in KINDS]) for writing in writings]


def counts() -> dict[str, dict[str, int]]:
    names = {WHOLE: "found", ANNOUNCED: "found_behind_its_word", PART: "in_part", MISSED: "missed"}
    return {
        title: dict(Counter(names[one] for _, cells in rows for one in cells if one != NONE))
        for title, rows in sections()
    }


def page() -> str:
    """The matrix as it stands in the documentation."""
    lines = list[str]()
    head = "| | " + " | ".join(f"`{kind}`" for kind in KINDS) + " |"
    for title, rows in sections():
        lines += [f"### {title}", "", head, "|---|" + ":-:|" * len(KINDS)]
        lines += [f"| {_safe(name)} | " + " | ".join(cells) + " |" for name, cells in rows]
        lines.append("")
    total = Counter(one for _, rows in sections() for _, cells in rows for one in cells if one != NONE)
    lines.append(
        f"{sum(total.values())} cases: {total[WHOLE]} found, {total[ANNOUNCED]} found behind their word, "
        f"{total[PART]} in part, {total[MISSED]} missed."
    )
    return "\n".join(lines)


def _safe(name: str) -> str:
    return name.replace("|", "\\|")


SENTENCES = {
    "prose, Spanish": "El comité revisó el informe trimestral y pidió ampliar el análisis de la cartera en 2025. ",
    "prose, English": "The committee reviewed the quarterly report and asked for a wider analysis of it in 2025. ",
    "prose with «quotes»": "«El comité» revisó — el informe… “trimestral” y pidió ampliar el análisis en 2025. ",
    "prose, Russian": "Комитет рассмотрел квартальный отчет о рисках и попросил расширить анализ в 2025 году. ",
    "table of numbers": "4510 3321 7764 1290 8843 2201 5567 9034\n",
    "CSV": "10023,2026-11-30,Madrid,1234.56,EUR,OK,612\n",
    "code": "for (int i=0;i<12345678;i++) { total += values[i] * 0.5f; } // see RFC 7519\n",
    "log": '127.0.0.1 - - [30/Nov/2026:18:50:51 +0000] "GET /v1/models?id=1234567" 200 1712 0.004\n',
    "UUIDs": "550e8400-e29b-41d4-a716-446655440000\n",
}


def cost(rounds: int = 20) -> dict[str, float]:
    """Microseconds of this thread per KiB, phrases included: the best of `rounds`."""
    duties = actions_of(Obligations(redaction="redact", guardrails="default"))
    assert duties is not None
    found = {}
    for name, sentence in SENTENCES.items():
        text = (sentence * 100)[:4096]
        request, best = ChatRequest("mini", (Message.of_text("user", text),)), float("inf")
        for _ in range(rounds):
            started = time.thread_time()
            Prompts(duties, lambda: None).inspect(request)
            best = min(best, time.thread_time() - started)
        found[name] = round(best * 1e6 / 4, 1)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    group = parser.add_mutually_exclusive_group()
    group.add_argument("--write", action="store_true")
    group.add_argument("--json", action="store_true")
    group.add_argument("--cost", action="store_true")
    given = parser.parse_args()
    if given.json or given.cost:
        print(json.dumps(cost() if given.cost else counts(), indent=2, ensure_ascii=False))
    elif given.write:
        text = PAGE.read_text(encoding="utf-8")
        head, _, rest = text.partition(BEGIN)
        PAGE.write_text(f"{head}{BEGIN}\n\n{page()}\n\n{END}{rest.partition(END)[2]}", encoding="utf-8")
    else:
        print(page())


if __name__ == "__main__":
    main()
