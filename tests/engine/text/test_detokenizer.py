from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from engine.text.detokenizer import Detokenizer
from engine.text.stop_strings import StopMatcher

TEXT = "Año nuevo 🎉 👩‍👩‍👧 中文字 – café ~ ñandú"


def as_bytes(token_id: int) -> bytes:
    return bytes([token_id])


def stream(data: bytes, stops: tuple[str, ...] = (), **options: object) -> tuple[list[str], Detokenizer]:
    """One delta per byte, then the flush."""
    matcher = StopMatcher(stops) if stops else None
    detokenizer = Detokenizer(as_bytes, matcher=matcher, **options)  # type: ignore[arg-type]
    deltas = []
    for byte in data:
        deltas.append(detokenizer.push(byte))
        if detokenizer.stopped_by is not None:
            break
    deltas.append(detokenizer.flush())
    return deltas, detokenizer


def test_characters_split_over_tokens_never_show_a_replacement_character() -> None:
    deltas, _ = stream(TEXT.encode())
    assert "".join(deltas) == TEXT
    assert not any("\ufffd" in delta for delta in deltas)


@given(st.binary(max_size=60))
def test_deltas_of_any_bytes_equal_the_full_decode(data: bytes) -> None:
    deltas, _ = stream(data)
    assert "".join(deltas) == data.decode("utf-8", "replace")


@given(st.text(max_size=30), st.lists(st.text(min_size=1, max_size=4), min_size=1, max_size=4))
def test_deltas_with_stop_strings_equal_the_full_text_cut_at_the_first_stop(text: str, stops: list[str]) -> None:
    data = text.encode("utf-8", "ignore")
    text = data.decode()
    ends = [(text.find(stop) + len(stop), -len(stop), stop) for stop in stops if stop in text]
    expected, found = (text, None) if not ends else (text[: min(ends)[0] + min(ends)[1]], min(ends)[2])
    deltas, detokenizer = stream(data, tuple(stops))
    assert "".join(deltas) == expected
    assert detokenizer.stopped_by == found


def test_an_unfinished_character_at_the_end_is_flushed_as_a_full_decode_would() -> None:
    deltas, _ = stream("añ".encode()[:2])
    assert deltas == ["a", "", "\ufffd"]


def test_only_what_may_become_a_stop_string_is_held_back() -> None:
    deltas, _ = stream(b"ab</thx", ("</think>",))
    assert deltas == ["a", "b", "", "", "", "", "</thx", ""]


def test_a_stop_string_over_several_tokens_is_cut_out() -> None:
    deltas, detokenizer = stream(b"hola FIN mundo", ("FIN",))
    assert "".join(deltas) == "hola "
    assert detokenizer.stopped_by == "FIN"


def test_a_stop_string_that_is_a_suffix_of_a_held_prefix_is_found() -> None:
    deltas, detokenizer = stream(b"xabcy", ("abcd", "bc"))
    assert ("".join(deltas), detokenizer.stopped_by) == ("xa", "bc")


def test_a_stop_string_in_the_middle_of_one_token_cuts_the_token() -> None:
    detokenizer = Detokenizer(lambda _: b"uno\n\ndos", matcher=StopMatcher(("\n\n",)))
    assert detokenizer.push(0) == "uno"
    assert detokenizer.push(0) == ""


def test_the_stop_string_is_kept_when_asked_for() -> None:
    deltas, _ = stream(b"hola FIN mundo", ("FIN",), include_stop=True)
    assert "".join(deltas) == "hola FIN"


def test_min_tokens_lets_early_stop_strings_pass() -> None:
    deltas, detokenizer = stream(b"..a.b", (".",), min_tokens=4)
    assert ("".join(deltas), detokenizer.stopped_by) == ("..a", ".")


def test_hidden_tokens_show_no_text() -> None:
    detokenizer = Detokenizer(as_bytes, hidden=frozenset({66}))
    assert [detokenizer.push(t) for t in b"ABC"] == ["A", "", "C"]


def test_four_thousand_characters_of_stop_strings_are_matched_in_linear_time() -> None:
    stops = tuple("a" * 60 + chr(98 + i % 24) * (1 + i // 24) for i in range(60))
    deltas, detokenizer = stream(b"a" * 5000, stops)
    assert detokenizer.stopped_by is None
    assert "".join(deltas) == "a" * 5000
