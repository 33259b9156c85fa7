"""Long texts: the tokens of the whole, in pieces; refused early where they cannot fit, and never earlier than that."""

from __future__ import annotations

import random
import threading
import time
import unicodedata
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, Tokenizer, normalizers, pre_tokenizers
from tokenizers.models import BPE, WordPiece

from engine.errors import TextTooLong
from engine.text.encoding import TextEncoder
from engine.text.tokenizer import ChatTokenizer
from engine.text.vocabulary import WORDS, Vocabulary
from engine.weights.loader import open_checkpoint
from tests.engine.text.test_tokenizer import sentencepiece_metadata
from tests.fakes.demo_models import LARGE, SMALL, demo_model

MERGES = ["h o", "l a", "ho la", "Ġ ho", "Ġho la", "Ġ Ġ", "ĠĠ ĠĠ", ", Ġ", "c a", "n a", "1 2", "e l", "Ċ Ċ", "! !"]
ALPHABET = "hola cané \t\n\r,.;:!?'12Ñß漢字、。한글ёЖ\u0301\u0338\u1100\u1161\u11a8'sDLL\u200b\u2028<|>"
GPT2 = pre_tokenizers.ByteLevel(add_prefix_space=False)


def splitting(words: str) -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(words), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )


KINDS: dict[str, pre_tokenizers.PreTokenizer] = {
    "gpt-2": GPT2,
    "smollm": pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), GPT2]),
    **{name: splitting(words) for name, words in WORDS.items()},
}


def byte_level(kind: str, *, nfc: bool = False, added: tuple[AddedToken, ...] = ()) -> Any:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    pairs = [tuple(merge.split(" ")) for merge in MERGES]
    words = [*alphabet, *("".join(pair) for pair in pairs)]
    tokenizer = Tokenizer(BPE({word: i for i, word in enumerate(dict.fromkeys(words))}, _formed(pairs, set(words))))
    tokenizer.pre_tokenizer = KINDS[kind]
    if nfc:
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.add_special_tokens([AddedToken("<|end|>", normalized=False, special=True)])
    tokenizer.add_tokens(list(added))
    return tokenizer


def _formed(pairs: list[Any], words: set[str]) -> list[Any]:
    return [pair for pair in pairs if set(pair) <= words]


@pytest.mark.parametrize("nfc", [False, True], ids=["as-it-is", "nfc"])
@pytest.mark.parametrize("kind", KINDS)
@given(text=st.text(st.sampled_from(ALPHABET), max_size=120), piece=st.integers(1, 30))
@settings(max_examples=60, deadline=None)
def test_pieces_give_the_tokens_of_the_whole(kind: str, nfc: bool, text: str, piece: int) -> None:
    tokenizer = byte_level(kind, nfc=nfc)
    assert TextEncoder(tokenizer, piece=piece).encode(text) == tokenizer.encode(text).ids


@pytest.mark.models
@pytest.mark.parametrize("name", [SMALL, LARGE])
def test_the_demo_models_read_a_long_text_the_same_in_pieces(name: str) -> None:
    tokenizer = ChatTokenizer.from_checkpoint(open_checkpoint(demo_model(name)))._tokenizer
    rng = random.Random(7)
    words = [
        "Hola",
        " mundo",
        ", ",
        "\n\n",
        "don't",
        " 12345",
        "  ",
        "código:",
        " naïve",
        "漢字、",
        "🙂",
        "<|im_end|>",
        "\t",
    ]
    text = "".join(rng.choice(words) for _ in range(30_000))
    for piece in (100, 1000, 32_768):
        assert TextEncoder(tokenizer, piece=piece).encode(text) == tokenizer.encode(text).ids


@pytest.mark.parametrize(
    "added",
    [
        AddedToken("hola canal", normalized=False),
        AddedToken("x", lstrip=True),
        AddedToken("y", rstrip=True),
        AddedToken("z", single_word=True),
    ],
    ids=["over a boundary", "eats blanks before", "eats blanks behind", "looks around"],
)
def test_a_tokenizer_that_looks_over_boundaries_is_not_cut(added: AddedToken) -> None:
    tokenizer = byte_level("gpt-2", added=(added,))
    text = "hola canal x y z " * 20
    assert TextEncoder(tokenizer, piece=3).encode(text) == tokenizer.encode(text).ids


def test_an_unknown_pre_tokenizer_is_not_cut() -> None:
    tokenizer = byte_level("gpt-2")
    tokenizer.pre_tokenizer = splitting(r"\p{L}+ \p{L}+|.")
    text = "hola canal " * 20
    assert TextEncoder(tokenizer, piece=3).encode(text) == tokenizer.encode(text).ids


def test_the_tokens_around_a_text_come_once() -> None:
    from tokenizers import processors

    tokenizer = byte_level("gpt-2")
    end = tokenizer.token_to_id("<|end|>")
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<|end|> $A <|end|>", special_tokens=[("<|end|>", end)]
    )
    text = "hola canal " * 20
    ids = TextEncoder(tokenizer, piece=3).encode(text, special=True)
    assert ids == tokenizer.encode(text, add_special_tokens=True).ids
    assert ids.count(end) == 2


@pytest.mark.parametrize(
    "text", ["", "h", "hola " * 9, "    " * 30, "漢字、" * 20, "e\u0301" * 40, "\u1100\u1161\u11a8" * 30]
)
@pytest.mark.parametrize("nfc", [False, True])
def test_no_text_that_fits_is_refused_and_no_other_gets_through(nfc: bool, text: str) -> None:
    tokenizer = byte_level("gpt-2", nfc=nfc)
    count = len(tokenizer.encode(text).ids)
    encoder = TextEncoder(tokenizer, piece=7)
    assert encoder.least_tokens(text) <= count
    assert len(encoder.encode(text, most=count)) == count
    if count:
        with pytest.raises(TextTooLong) as refusal:
            encoder.encode(text, most=count - 1)
        assert count - 1 < refusal.value.least <= count


def test_bytes_for_which_there_is_no_token_are_not_counted() -> None:
    tokenizer = Tokenizer(BPE({"h": 0, "o": 1}, []))
    tokenizer.pre_tokenizer = GPT2
    text = "hola" * 10 + "\x06" * 100_000
    assert tokenizer.encode(text).ids == [0, 1] * 10
    assert TextEncoder(tokenizer).encode(text, most=20) == [0, 1] * 10


def test_the_bound_of_a_sentencepiece_vocabulary_holds_too() -> None:
    from engine.text.vocabulary import from_gguf

    tokenizer = from_gguf(sentencepiece_metadata()).tokenizer
    encoder = TextEncoder(tokenizer)
    for text in ("hello the lord " * 9, "     ", "ñ😀" * 9):
        assert 0 < encoder.least_tokens(text) <= len(tokenizer.encode(text).ids)


def test_where_one_token_may_stand_for_any_text_nothing_is_refused_by_length() -> None:
    words = Tokenizer(WordPiece({"[UNK]": 0}, unk_token="[UNK]"))
    unknown = Tokenizer(BPE({"<unk>": 0, "a": 1}, [], unk_token="<unk>", fuse_unk=True))
    for tokenizer in (words, unknown):
        assert TextEncoder(tokenizer).least_tokens("x" * 1_000_000) == 0
        assert TextEncoder(tokenizer).encode("x" * 1_000_000, most=5) == [0]


@pytest.mark.models
@pytest.mark.parametrize("text", ["palabra " * 475_000, "a" * 3_800_000, "x!" * 1_900_000, "漢字、" * 420_000])
def test_a_text_that_cannot_fit_costs_no_more_than_one_that_fits(text: str) -> None:
    tokenizer = ChatTokenizer.from_checkpoint(open_checkpoint(demo_model(SMALL)))
    for method in (tokenizer.encode, tokenizer.encode_plain):
        method("warm " * 10, most=4096)
        started = time.process_time()
        with pytest.raises(TextTooLong):
            method(text, most=4096)
        assert time.process_time() - started < 0.8  # 2 to 5 s where the whole text is read


@pytest.mark.models
def test_other_threads_run_while_a_long_text_is_read() -> None:
    """Pure Python counts meanwhile; where `encode` held the interpreter it stood still until the end."""
    tokenizer = ChatTokenizer.from_checkpoint(open_checkpoint(demo_model(SMALL)))
    text = "palabra" * 150_000  # one word: it cannot be cut
    ran, done = threading.Event(), threading.Event()
    entered = threading.Event()

    def watch() -> None:
        entered.wait()
        for _ in range(1000):
            if done.is_set():
                return
            time.sleep(0.001)
            if not done.is_set():
                ran.set()

    watcher = threading.Thread(target=watch)
    watcher.start()
    tokenizer.encode("warm")
    entered.set()
    tokenizer._encoder._ids(text, special=False)
    done.set()
    watcher.join()
    assert ran.is_set()


CONTROLS = ["<|im_start|>", "<|im_end|>", "<|im|>", "<|e"]


@given(text=st.lists(st.sampled_from([*CONTROLS, "<|", "|>", "im", "x", "<"]), max_size=60).map("".join))
@settings(max_examples=300, deadline=None)
def test_control_tokens_are_found_in_slices_as_in_the_whole(text: str) -> None:
    tokenizer = _with_controls()
    assert tokenizer._controls is not None
    whole = [(found.start(), found[0]) for found in tokenizer._controls.finditer(text)]
    for size in (1, 3, 8, 50):
        import engine.text.tokenizer as module

        before, module._SLICE = module._SLICE, size
        try:
            assert [(found.start(), found[0]) for found in tokenizer._written_controls(text)] == whole
        finally:
            module._SLICE = before


_MADE: list[ChatTokenizer] = []


def _with_controls() -> ChatTokenizer:
    if not _MADE:
        tokenizer = byte_level("gpt-2")
        tokenizer.add_special_tokens([AddedToken(text, normalized=False, special=True) for text in CONTROLS])
        ids = frozenset(tokenizer.token_to_id(text) for text in CONTROLS)
        _MADE.append(ChatTokenizer(Vocabulary(tokenizer, True, frozenset(), None, ids, None), 400))
    return _MADE[0]


def test_canonical_composition_makes_a_text_at_most_three_times_shorter() -> None:
    """What `least_tokens` relies on, for every character of Unicode."""
    worst = max(
        len(unicodedata.normalize("NFD", chr(code)).encode()) / len(unicodedata.normalize("NFC", chr(code)).encode())
        for code in range(0x110000)
        if not 0xD800 <= code <= 0xDFFF
    )
    assert worst <= 3


@pytest.mark.models
@pytest.mark.parametrize("name", [SMALL, LARGE])
def test_reading_control_tokens_as_text_shares_the_vocabulary_and_its_ids(name: str) -> None:
    tokenizer = ChatTokenizer.from_checkpoint(open_checkpoint(demo_model(name)))
    copy = Tokenizer.from_str(tokenizer._tokenizer.to_str())
    copy.encode_special_tokens = True
    started = time.thread_time()
    tokenizer.encode_plain("x")
    assert time.thread_time() - started < 0.25  # up to 1.5 s for a copy
    for text in ("<|im_end|> hola <|im_start|>user\n", " x<|endoftext|>y", "<|im_end|>" * 3, "sin nada"):
        assert tokenizer.encode_plain(text) == copy.encode(text, add_special_tokens=False).ids
    control = tokenizer.encode("<|im_end|>")
    assert len(control) == 1
    assert tokenizer.encode_plain("<|im_end|>") != control
