"""The strict door: what is not canonical, small, flat and unambiguous never reaches the JWT library."""

from __future__ import annotations

import base64
import contextlib
import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateway.errors import Unauthenticated
from gateway.identity.strict_json import StrictJsonError, parse_object
from gateway.identity.token_parser import parse_claims, parse_compact


def segment(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def compact(header: bytes = b'{"alg":"RS256","kid":"k1"}', payload: bytes = b"{}", signature: bytes = b"sig") -> str:
    return ".".join(segment(part) for part in (header, payload, signature))


def refused(token: str) -> str:
    with pytest.raises(Unauthenticated) as refusal:
        parse_compact(token, max_bytes=16_384)
    assert refusal.value.code == "invalid_token"
    return refusal.value.detail or ""


def test_well_formed_token_is_taken_apart() -> None:
    jws = parse_compact(compact(), max_bytes=16_384)
    assert (jws.algorithm, jws.kid, jws.payload, jws.signature) == ("RS256", "k1", b"{}", b"sig")
    assert jws.signing_input == compact().rpartition(".")[0].encode()


def test_repr_shows_no_part_of_the_token() -> None:
    shown = repr(parse_compact(compact(payload=b'{"sub":"secreto"}'), max_bytes=16_384))
    assert "secreto" not in shown
    assert "sig" not in shown.replace("signature", "").replace("signing_input", "")


@pytest.mark.parametrize("token", ["a.b", "a.b.c.d", "a.b.c.d.e", "a.b.c\n", " a.b.c", "a.b.c ", "a..b.c", "a b.c.d"])
def test_other_than_three_segments_is_refused(token: str) -> None:
    assert "three base64url segments" in refused(token)


@pytest.mark.parametrize("char", ["=", "+", "/", " ", "\t", "\x00", "é", "ａ", "\u200b"])
def test_character_outside_the_alphabet_is_refused(char: str) -> None:
    assert "segments" in refused(compact() + char)


def test_unused_bits_in_the_last_character_are_refused() -> None:
    head, body, _ = compact().split(".")
    assert "canonical" in refused(f"{head}.{body}.AB")


def test_segment_of_impossible_length_is_refused() -> None:
    head, body, _ = compact().split(".")
    assert "base64url" in refused(f"{head}.{body}.AAAAA")


def test_long_token_is_refused_before_it_is_decoded() -> None:
    assert refused("a" * 16_385) == "token too long"


def test_long_header_is_refused() -> None:
    assert refused(compact(header=b'{"alg":"RS256","x":"' + b"a" * 4000 + b'"}')) == "header too long"


@pytest.mark.parametrize(
    "header",
    [
        b"",
        b"[]",
        b"null",
        b'"x"',
        b"{",
        b'{"alg":"RS256"}x',
        b'\xef\xbb\xbf{"alg":"RS256"}',
        '{"alg":"RS256"}'.encode("utf-16"),
        b'{"alg":"RS256","alg":"none"}',
        b'{"alg":"RS256","x":{"a":1,"a":2}}',
        b'{"alg":"RS256","x":NaN}',
        b'{"alg":"RS256","x":1e999}',
        b'{"alg":"RS256","x":' + b"9" * 4000 + b"}",
        b'{"alg":"RS256","x":"\\ud800"}',
        b'{"alg":"RS256","x":"\\u0000"}',
        b'{"alg":"RS256","x":' + b"[" * 8 + b"]" * 8 + b"}",
        b'{"alg":"\xff"}',
        b'{"alg":null}',
        b'{"alg":["RS256"]}',
        b"{}",
    ],
)
def test_header_that_is_not_one_plain_object_is_refused(header: bytes) -> None:
    refused(compact(header=header))


def test_deep_payload_is_refused_without_exhausting_the_stack() -> None:
    with pytest.raises(Unauthenticated):
        parse_claims(b'{"a":' + b"[" * 6000 + b"]" * 6000 + b"}")


def test_repeated_claim_is_refused() -> None:
    with pytest.raises(Unauthenticated):
        parse_claims(b'{"sub":"a","sub":"b"}')


def test_spanish_text_is_welcome() -> None:
    assert parse_claims('{"department":"Tesorería Ñuñoa"}'.encode()) == {"department": "Tesorería Ñuñoa"}


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.binary(max_size=200))
def test_no_bytes_whatsoever_raise_anything_else(raw: bytes) -> None:
    with contextlib.suppress(StrictJsonError):
        assert isinstance(parse_object(raw, max_depth=4), dict)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.text(max_size=120) | st.from_regex(r"[A-Za-z0-9_-]{0,40}\.[A-Za-z0-9_-]{0,40}\.[A-Za-z0-9_-]{0,40}"))
def test_no_text_whatsoever_raises_anything_else(text: str) -> None:
    with contextlib.suppress(Unauthenticated):
        assert isinstance(parse_compact(text, max_bytes=16_384).algorithm, str)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(st.characters(exclude_categories=["Cs", "Cc"])),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("abc", max_size=3), inner, max_size=3),
    max_leaves=8,
)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.dictionaries(st.text("abcdef", max_size=5), VALUES, max_size=5))
def test_what_json_writes_is_read_back_the_same(document: dict[str, object]) -> None:
    assert parse_object(json.dumps(document).encode(), max_depth=16) == document
