"""Canonical bytes, commitments and the chain, against what the standards say."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from datetime import UTC, datetime
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.audit.canonical import CommitmentKey, canonical_json, chain_hash, exact, genesis, micro, storable
from gateway.errors import ConfigError

KEYS = st.text(st.characters(codec="utf-8"), max_size=8)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53) + 1, 2**53 - 1) | st.text(st.characters(codec="utf-8")),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=12,
)


@given(document=st.dictionaries(KEYS, JSON, max_size=6))
def test_equal_documents_have_equal_bytes_whatever_their_order(document: dict[str, object]) -> None:
    reordered = dict(reversed(document.items()))
    assert canonical_json(document) == canonical_json(reordered)
    assert json.loads(canonical_json(document)) == document


def test_keys_are_sorted_without_white_space_and_utf8_is_kept() -> None:
    assert canonical_json({"b": 1, "a": {"ñ": "¿sí?", "m": [True, None]}}) == (
        '{"a":{"m":[true,null],"ñ":"¿sí?"},"b":1}'.encode()
    )


def test_times_end_in_z_and_ids_are_text() -> None:
    moment = datetime(2026, 11, 30, 9, 8, 7, 65, tzinfo=UTC)
    assert canonical_json({"id": UUID(int=1), "ts": moment}) == (
        b'{"id":"00000000-0000-0000-0000-000000000001","ts":"2026-11-30T09:08:07.000065Z"}'
    )


def test_a_lone_surrogate_is_replaced_and_said_so() -> None:
    assert (
        canonical_json({"m": "a\ud800", "l": ["\udfff"]}) == '{"l":["\ufffd"],"m":"a\ufffd","sanitized":true}'.encode()
    )


@pytest.mark.parametrize(
    ("number", "written"),
    [(7, 7), (2**53, "9007199254740992"), (0.1, "0.1"), (float("nan"), "nan"), (-(2**70), str(-(2**70))), (None, None)],
)
def test_numbers_that_readers_disagree_about_are_text(number: float | None, written: object) -> None:
    assert exact(number) == written


@pytest.mark.parametrize(("number", "written"), [(0.5, 500_000), (-0.41, -410_000), (float("inf"), None), (None, None)])
def test_evidence_is_in_millionths(number: float | None, written: int | None) -> None:
    assert micro(number) == written


@pytest.mark.parametrize(
    ("text", "kept"), [("a\x00b", "a\ufffdb"), ("\ud83d", "\ufffd"), ("ñandú", "ñandú"), (None, None)]
)
def test_text_is_made_storable(text: str | None, kept: str | None) -> None:
    assert storable(text) == kept


def test_text_is_cut_to_its_limit() -> None:
    assert storable("x" * 2000, 10) == "x" * 10


@given(key=st.binary(min_size=16, max_size=200), salt=st.binary(min_size=16, max_size=16), value=st.binary())
def test_a_commitment_is_hmac_sha256(key: bytes, salt: bytes, value: bytes) -> None:
    expected = hmac.new(key, salt + b"subject\x00" + value, "sha256").digest()
    assert CommitmentKey(key).commit(salt, "subject", value) == base64.b64encode(expected).decode()
    assert CommitmentKey(key).matches(salt, "subject", value, base64.b64encode(expected).decode())


def test_a_short_key_is_refused() -> None:
    with pytest.raises(ConfigError, match="too short"):
        CommitmentKey(b"hunter2")


def test_the_chain_depends_on_place_and_on_every_byte() -> None:
    start = genesis("node", UUID(int=7))
    assert start != genesis("node", UUID(int=8))
    assert start != genesis("edon", UUID(int=7))
    assert chain_hash(start, 1, b"r") == hashlib.sha256(start + (1).to_bytes(8, "big") + b"r").digest()
    assert len({chain_hash(start, 1, b"r"), chain_hash(start, 2, b"r"), chain_hash(start, 1, b"s")}) == 3
