"""The product speaks the field's words: retired names stay retired, and a module's docstring says what it is."""

from __future__ import annotations

import io
import re
import tokenize
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MODULES = sorted(path for package in ("gateway", "engine", "kernels") for path in (ROOT / package).rglob("*.py"))
RETIRED = {
    "Advance": "SequenceUpdate",
    "Asked": "RevocationRequest",
    "Courier": "ShippingLoop",
    "Delivery": "EngineOutput",
    "Front": "EdgeMiddleware",
    "Hangup": "DisconnectWatcher",
    "Holder": "EffectiveSubject",
    "Lobby": "StartupApp",
    "Place": "CursorPosition",
    "Seq": "abc.Sequence",
    "Settled": "RuleOutcome",
    "Spot": "Location",
    "Trunk": "DecoderShell",
    "culprit": "faulty",
    "distrust": "invalidate",
    "holder_of": "effective_subject",
    "Act": "GuardrailAction",
    "Arrival": "IncomingRequest",
    "Authority": "StopConditions",
    "Duties": "GuardrailActions",
    "Laps": "StageTimer",
    "Look": "RuleState",
    "Shape": "ResponseFormat",
    "demand": "require",
    "duties_of": "actions_of",
    "keep_house": "maintain_partitions",
}
RETIRED_FILES = {
    "boots",
    "compiling",
    "courier",
    "duties",
    "group",
    "growth",
    "hangup",
    "holder",
    "laps",
    "lobby",
    "look",
    "no_effect",
    "placement",
    "splice",
    "stopwatch",
    "wording",
}
HEADLESS = re.compile(r'"""(What|Where|Who|Which|Whether|How|May|When|Why|From|Do|In which)\b')
BRITISH = re.compile(
    r"\b(\w*(authoris|normalis|quantis|serialis|tokenis|initialis|organis|recognis|optimis|finalis|summaris)\w*"
    r"|behaviour\w*|catalogue\w*|colour\w*|honour\w*|licence\w*|centred)\b",
    re.IGNORECASE,
)


def words_of(path: Path) -> set[str]:
    with path.open("rb") as file:
        tokens = tokenize.generate_tokens(io.StringIO(file.read().decode()).readline)
        return {token.string for token in tokens if token.type == tokenize.NAME}


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_module_uses_a_retired_name(path: Path) -> None:
    assert path.stem not in RETIRED_FILES
    assert not {name: RETIRED[name] for name in words_of(path) & RETIRED.keys()}


def test_the_docstring_of_a_module_begins_with_a_noun_or_an_imperative() -> None:
    assert not [str(path.relative_to(ROOT)) for path in MODULES if HEADLESS.match(path.read_text().lstrip())]


def test_every_term_of_the_glossary_that_is_a_file_exists() -> None:
    page = (ROOT / "docs" / "reference" / "glossary.md").read_text(encoding="utf-8")
    named = re.findall(r"`((?:gateway|engine|kernels)/[\w/.]+)`", page)
    assert len(named) > 10
    assert not [name for name in named if not (ROOT / name).exists()]


def test_one_spelling_is_used() -> None:
    pages = [
        *MODULES,
        *(ROOT / "docs").rglob("*.md"),
        ROOT / "README.md",
        ROOT / "CONTRIBUTING.md",
        ROOT / "SECURITY.md",
    ]
    found = {str(page.relative_to(ROOT)): BRITISH.findall(page.read_text(encoding="utf-8")) for page in pages}
    assert not {page: words for page, words in found.items() if words}
