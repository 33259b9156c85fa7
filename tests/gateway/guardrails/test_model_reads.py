"""Inspection reads at least what a model reads: after normalizer, tokenizer and chat template, for every character."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Iterable, Iterator
from itertools import islice

import pytest
from tokenizers import Regex, normalizers
from tokenizers.normalizers import Normalizer

from engine.text.chat_template import ChatTemplate
from engine.text.tokenizer import ChatTokenizer
from engine.text.vocabulary import Vocabulary
from engine.weights.loader import open_checkpoint
from gateway.guardrails.lookalikes import plain_form
from gateway.guardrails.scan import scan
from tests.fakes.demo_models import LARGE, SMALL, demo_model
from tests.fakes.tiny_model import byte_tokenizer

NIF = ("1234", "5678Z")
SEPARATES_NOT = frozenset("@%€$#?!")
"""Signs that end what stands before them."""
RAISED = frozenset("²³¹⁰⁴⁵⁶⁷⁸⁹₀₁₂₃₄₅₆₇₈₉")
NORMALIZERS: dict[str, Normalizer] = {
    "NFC": normalizers.NFC(),
    "NFD": normalizers.NFD(),
    "NFKC": normalizers.NFKC(),
    "NFKD": normalizers.NFKD(),
    "nmt_nfkc": normalizers.Sequence([normalizers.Nmt(), normalizers.NFKC()]),
    "spaces": normalizers.Sequence([normalizers.NFKC(), normalizers.Replace(Regex(r"\s+"), " "), normalizers.Strip()]),
    "sentencepiece": normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]),
    "bert": normalizers.BertNormalizer(clean_text=True, handle_chinese_chars=True, strip_accents=True, lowercase=False),
    "strip_accents": normalizers.Sequence([normalizers.NFKD(), normalizers.StripAccents()]),
}
TEMPLATES = {
    "plain": "{% for m in messages %}<|start|>{{ m['role'] }}\n{{ m['content'] }}<|end|>\n{% endfor %}",
    "trimmed": "{% for m in messages %}<|start|>{{ m['role'] }}\n{{ m['content'] | trim }}<|end|>{% endfor %}",
    "stripped": "{% for m in messages %}{{ m['role'] + ': ' + m['content'].strip() + '\n' }}{% endfor %}",
}


def characters(step: int) -> Iterator[str]:
    """Every assigned character, and every `step`th of the ideographs, syllables and unassigned ones, which are many."""
    for code in range(0x110000):
        if 0xD800 <= code < 0xE000:
            continue
        many = 0x3400 <= code < 0xD800 or 0x17000 <= code < 0x19000 or code >= 0x20000
        if code % step == 0 or not (many or unicodedata.category(chr(code)) in ("Cn", "Co")):
            yield chr(code)


def batches(signs: Iterable[str], size: int = 2000) -> Iterator[list[str]]:
    left = iter(signs)
    while batch := list(islice(left, size)):
        yield batch


def found_in(texts: list[str]) -> list[bool]:
    """Which of the texts hold a NIF, read as one long text."""
    joined, ends = "", []
    for text in texts:
        joined += f"dato {text} fin\n"
        ends.append(len(joined))
    hits, spans = [False] * len(texts), scan(joined)
    at = 0
    for span in spans:
        while ends[at] < span.end:
            at += 1
        hits[at] |= span.category == "es_nif"
    return hits


def hides_nothing(sign: str) -> bool:
    """The number is still one to a reader: what stands in it is no letter, digit or end of a sentence."""
    plain = plain_form(sign)
    return not any(one.isalnum() or one in SEPARATES_NOT for one in plain)


def check_every_character(step: int) -> None:
    for batch in batches(characters(step)):
        for sign, found in zip(batch, found_in([sign.join(NIF) for sign in batch]), strict=True):
            if sign not in RAISED:
                assert found is hides_nothing(sign), ascii(sign)


def test_a_character_inside_a_number_hides_it_only_if_it_makes_another_number_of_it() -> None:
    check_every_character(step=997)


@pytest.mark.slow
def test_that_holds_for_all_of_unicode() -> None:
    check_every_character(step=1)


@pytest.mark.parametrize("name", NORMALIZERS)
@pytest.mark.parametrize("form", ["{0}{sign}{1}", "1234567{sign}L", "{sign}2345678Z", "1234567{sign}{sign}"])
def test_what_a_normalizer_leaves_of_a_number_was_found_before(name: str, form: str) -> None:
    normalizer = NORMALIZERS[name]
    changed = [sign for sign in characters(step=997) if sign not in normalizer.normalize_str(f"1{sign}1")]
    for batch in batches(changed):
        given = [form.format(*NIF, sign=sign) for sign in batch]
        reads = [normalizer.normalize_str(text) for text in given]
        for text, read, before, after in zip(given, reads, found_in(given), found_in(reads), strict=True):
            assert before or not after, (ascii(text), ascii(read))


def read_by(tokenizer: ChatTokenizer) -> Callable[[str], str]:
    return lambda text: tokenizer.decode(tokenizer.apply_chat_template([{"role": "user", "content": text}]))


def check_reading(read: Callable[[str], str], step: int) -> None:
    """Line by line: the model gets the very text, or what it gets of a number was found before."""
    for batch in batches(characters(step)):
        content = "".join([f"dato {sign.join(NIF)} fin\n" for sign in batch]).strip()
        if content in read(content):
            continue
        for sign in batch:
            text = f"dato {sign.join(NIF)} fin"
            after = read(text)
            assert text in after or scan(text) or not scan(after), (ascii(text), ascii(after))


@pytest.mark.models
@pytest.mark.parametrize("model", [SMALL, LARGE], ids=["small", "large"])
def test_the_demo_models_read_nothing_that_was_not_inspected(model: str) -> None:
    check_reading(read_by(ChatTokenizer.from_checkpoint(open_checkpoint(demo_model(model)))), step=4096)


@pytest.mark.parametrize("normalizer", [None, *NORMALIZERS])
@pytest.mark.parametrize("template", TEMPLATES)
def test_no_tokenizer_and_template_make_a_number_that_was_not_inspected(normalizer: str | None, template: str) -> None:
    plain = byte_tokenizer()
    if normalizer is not None:
        plain.normalizer = NORMALIZERS[normalizer]
    vocabulary = Vocabulary(plain, True, frozenset({2}), 1, frozenset({0, 1, 2}), TEMPLATES[template])
    read = read_by(ChatTokenizer(vocabulary, 300))
    for sign in (
        *"\t\n\r\x00\x1b\x7f\x85\u00a0\u00ad\u200b\u2028\u2060\u2800\u3000\ufeff\ufffd",
        "\ue0d0",
        "\U000e0041",
    ):
        text = f"dato {sign.join(NIF)} fin"
        assert scan(text) or not scan(read(text)), ascii(sign)


def test_the_templates_are_ones_that_the_engine_takes() -> None:
    for source in TEMPLATES.values():
        assert "1234" in ChatTemplate(source, "", "").render([{"role": "user", "content": " 1234 "}])
