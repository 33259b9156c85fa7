"""A text in pieces: the same is found however it is cut, nothing of it leaves too early, and little is held back."""

from __future__ import annotations

import random
from itertools import pairwise
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.guardrails.detectors.form import LONGEST
from gateway.guardrails.scan import scan
from gateway.guardrails.spans import without
from gateway.guardrails.window import Window
from tests.fakes.made_up_keys import KEYS, with_keys

FOLDER = Path(__file__).parents[2] / "data" / "guardrails"
TEXTS = [
    with_keys(sample["text"])
    for name in ("hostile.yaml", "harmless.yaml")
    for sample in yaml.safe_load((FOLDER / name).read_text(encoding="utf-8"))
] + [
    text for texts in yaml.safe_load((FOLDER / "ordinary.yaml").read_text(encoding="utf-8")).values() for text in texts
]
PROSE = "El comité revisó el informe de 2025 y, tras 3 reuniones, pidió ampliar 1 de los 4 anexos. "


def pieces(text: str, cuts: list[int]) -> list[str]:
    places = sorted({cut % (len(text) + 1) for cut in cuts} | {0, len(text)})
    return [text[start:end] for start, end in pairwise(places)]


def through(parts: list[str]) -> str:
    """What comes out of a window in which everything found is replaced."""
    window, out = Window(scan), []
    for number, part in enumerate(parts):
        done = window.advance(part, last=number == len(parts) - 1)
        out.append(without(done.text, done.spans))
    assert window.held == ""
    return "".join(out)


@pytest.mark.parametrize("text", TEXTS, ids=lambda text: text[:40])
def test_a_text_that_arrives_sign_by_sign_is_read_as_a_whole(text: str) -> None:
    text = PROSE + text + " " + PROSE
    assert through(list(text)) == without(text, scan(text))


@pytest.mark.parametrize("text", TEXTS, ids=lambda text: text[:40])
def test_a_text_that_is_cut_once_is_read_as_a_whole(text: str) -> None:
    whole = without(text, scan(text))
    assert all(through([text[:cut], text[cut:]]) == whole for cut in range(1, len(text)))


@pytest.mark.parametrize("before", ["", "n:", "=", "«", "(", "[", '"', "’", "-", "a-", "más:", "–"])
@pytest.mark.parametrize("after", [" y", ",", ")", "» ", '"', " 12", "\n7", ". 5", ";x"])
@pytest.mark.parametrize(
    "number",
    [
        "4533 1229 6016 4788",
        "ES71 6584 4398 6565 3585 6010",
        "GB29 NWBK 6016 1331 9268 19",
        "43676643 B",
        "+34 612 34 57 89",
        "+57 (310) 555-0142",
        "3782 338938 95202",
        "17.956.976-0",
    ],
)
def test_what_stands_around_a_number_opens_no_gap(before: str, number: str, after: str) -> None:
    text = f"Ahí va {before}{number}{after} fin"
    assert through(list(text)) == without(text, scan(text))


@given(st.lists(st.sampled_from(TEXTS), min_size=1, max_size=6), st.lists(st.integers(0, 5000), max_size=40))
@settings(max_examples=200, deadline=None)
def test_cuts_never_change_what_is_found(texts: list[str], cuts: list[int]) -> None:
    text = "\n".join(texts)
    assert through(pieces(text, cuts)) == without(text, scan(text))


FRAGMENTS = (
    *("4533", "1229", "6016", "4788", "ES71", "6584", "4398", "6565", "3585", "6010", "GB29", "NWBK", "9268", "19"),
    *("43676643", "B", "Z", "+34", "612", "34", "57", "89", "(", ")", "(310)", "555-0142", "3782", "338938", "95202"),
    *(",", ".", ":", ";", "-", "/", "a", "el", "tel", "RUT", "rut", "dni", "IBAN:", "n:", "«x", "17.956.976-0", "que"),
    *("18808721-3", "password:", "hunter2!", "is", "es", "@", "ana@x.com", "4533-1229-6016-4788", "4533122960164788"),
    *("contraseña", "Bearer", "-----BEGIN PRIVATE KEY-----", "\u200b", "４５３３", "2024", "12", "NIT", "860166426-7"),
    *(
        "1234",
        "5678Z",
        "3679",
        "6476H",
        "X",
        "GODE",
        "561231",
        "GR8",
        "gode561231gr8",
        "tarjeta",
        "cédula",
        "79.456.123",
    ),
    *(
        "CLABE",
        "032180",
        "000118",
        "359719",
        "letra",
        "pedido",
        "<b>",
        "</b>",
        "<!-- -->",
        "**",
        '" + "',
        "|",
        "ref:",
        "DV",
    ),
    *("ana.lopez", "@", "@banco.es", "sk-proj-aB3dE5fG7hI9jK1lM3", "nO5pQ7rS9tU1vW3xY5zA7", "AKIAIOSF", "ODNN7EXAMPLE"),
    *(
        "¹",
        "\U000e0031",
        "⑩",
        "\x1b[0m",
        "x\x08",
        "\u2800",
        "Ⅳ",
        "А",
        "DNI",
        "N°",
        "VAT",
        "45678912",
        "y",
        "EL",
        "DE",
        "LA",
    ),
)
GLUE = (" ", "", "\n", "-", "  ", "\u00a0", "\t", "\r\n", ".", ", ", " | ", "_", ": ", "/", "\n\n   ", "\x00")


@given(
    st.lists(st.tuples(st.sampled_from(FRAGMENTS), st.sampled_from(GLUE)), min_size=3, max_size=20),
    st.lists(st.integers(0, 400), max_size=60),
)
@settings(max_examples=500, deadline=None)
def test_whatever_stands_together_is_read_the_same_in_pieces(parts: list[tuple[str, str]], cuts: list[int]) -> None:
    text = "".join(fragment + glue for fragment, glue in parts)
    assert through(pieces(text, cuts)) == without(text, scan(text))


@pytest.mark.parametrize("again", ["-----BEGIN PRIVATE KEY-----", "-----BEGIN CERTIFICATE-----", "-----BEGIN ", "x"])
def test_a_key_block_stays_held_whatever_begins_inside_it(again: str) -> None:
    header, body = "-----BEGIN PRIVATE KEY-----", "MC4CAQAwBQYDK2VwBCIEIJ1hsZ3v"
    text = f"Toma: {header} {body} {again} {body} {again} {body} "
    whole = without(text, scan(text))
    assert whole == "Toma: [PRIVATE_KEY]"
    assert all(through([text[:cut], text[cut:]]) == whole for cut in range(1, len(text)))
    assert through(list(text)) == whole


def test_prose_is_held_back_by_a_word_or_a_group_of_digits_only() -> None:
    window, text, most = Window(scan), PROSE * 20, 0
    for sign in text:
        window.advance(sign)
        most = max(most, len(window.held))
    assert most <= 24


@pytest.mark.parametrize(
    ("text", "most"),
    [('{"a":"uno","b":[2,3],"c":"un poco más","d":null}' * 40, 16), ("河豚は食べられますか。" * 60, 4)],
    ids=["json", "japanese"],
)
def test_texts_without_blanks_are_let_through_too(text: str, most: int) -> None:
    window, held = Window(scan), 0
    for sign in text:
        window.advance(sign)
        held = max(held, len(window.held))
    assert held <= most


@pytest.mark.parametrize(
    ("text", "most"),
    [
        ("4510 3321 7764 1290 8843 2201 5567 9034\n" * 40, 200),
        ("A B C D E F 1 2 3 " * 80, 200),
        ("1\n\n   \t" * 400, 1600),
        ("12,5 13,7 <b>11,9</b> 10,2 | 14,8\n" * 60, 200),
        ("EL CLIENTE DE LA CALLE 12 TIENE 3 DNI Y 4 IBAN " * 40, 120),
    ],
    ids=["digits", "capitals", "gaps", "markup", "shouting"],
)
def test_rows_of_groups_are_held_back_to_a_bound(text: str, most: int) -> None:
    window, held = Window(scan), 0
    for sign in text:
        window.advance(sign)
        held = max(held, len(window.held))
    assert held <= most


def test_a_word_without_end_is_let_through_piece_by_piece() -> None:
    window, most, out = Window(scan), 0, 0
    for _ in range(200):
        out += len(window.advance("a" * 500).text)
        most = max(most, len(window.held))
    assert most <= 2 * LONGEST + 500
    assert out + len(window.advance("", last=True).text) == 200 * 500


def test_a_key_longer_than_any_is_taken_out_to_the_end_of_its_word() -> None:
    chance = random.Random(1)
    head, body = KEYS["jwt"].split(".")[0], "".join(chance.choices("abcdefXYZ0123456789", k=40_000))
    text = f"antes {head}.{body[:3000]}.{body[3000:4400]} después"
    assert through(list(text)) == "antes [JWT] después"


def test_a_private_key_is_held_until_its_end_and_a_certificate_is_not() -> None:
    window = Window(scan)
    body = KEYS["private_key"].removesuffix("-----END PRIVATE KEY-----")
    assert window.advance("mira: " + body).text == "mira: "
    assert window.advance("-----END PRIVATE KEY-----\nfin ").text.endswith("\nfin ")
    other = Window(scan)
    shown = other.advance("-----BEGIN CERTIFICATE-----\n" + "MIIB" * 40 + "\n")
    assert shown.text.startswith("-----BEGIN CERTIFICATE")


def test_nothing_of_a_number_leaves_before_it_is_whole() -> None:
    for secret in ("4533 1229 6016 4788", "ES71 6584 4398 6565 3585 6010", KEYS["jwt"], KEYS["private_key"]):
        window, seen = Window(scan), ""
        for sign in "Toma: " + secret:
            seen += window.advance(sign).text
        assert seen == "Toma: "


@pytest.mark.parametrize("unseen", ["\u200b", "\u200b\u2066", "\ufe0f" * 4, "\u0336", "\U000e0041" * 9])
@pytest.mark.parametrize(
    "text",
    [
        "4533 1229 6016 4788",
        "ES71 6584 4398 6565 3585 6010",
        "número de afiliación a la seguridad social: 281234567840",
        "-----BEGIN PRIVATE KEY-----\n" + "MIIEvQIBADANBgkqhkiG9w0BAQ\n" * 4 + "-----END PRIVATE KEY-----",
    ],
    ids=lambda text: text[:12],
)
def test_signs_that_cannot_be_seen_make_no_gap_in_a_stream(text: str, unseen: str) -> None:
    text = "dato " + unseen.join(text) + " fin"
    whole = without(text, scan(text))
    assert "[" in whole
    assert through(list(text)) == whole


@pytest.mark.parametrize("blank", ["\u00a0", "\u2007"])
def test_a_private_key_with_fixed_spaces_in_its_head_streams_as_a_whole(blank: str) -> None:
    key = f"-----BEGIN{blank}PRIVATE{blank}KEY-----\n" + "MIIEvQIBADANBgkqhkiG9w0BAQ\n" * 4
    assert through(list(key + "-----END PRIVATE KEY-----")) == "[PRIVATE_KEY]"
