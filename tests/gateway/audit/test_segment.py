"""Frames on disk: what was written is read back, and any damage ends the reading before the damage."""

from __future__ import annotations

from pathlib import Path
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.audit.canonical import chain_hash, genesis
from gateway.audit.segment import (
    HEADER_BYTES,
    encode_frame,
    encode_header,
    read_boot,
    read_frames,
    read_header,
    segment_path,
)

BOOT = UUID(int=7)


def write_segment(folder: Path, number: int, first_seq: int, prev_hash: bytes, recs: list[bytes]) -> bytes:
    """A segment with these records; returns the hash of the last."""
    data = encode_header(BOOT, first_seq, prev_hash)
    for seq, rec in enumerate(recs, first_seq):
        own = chain_hash(prev_hash, seq, rec)
        data += encode_frame(seq, prev_hash, own, b"side", rec)
        prev_hash = own
    segment_path(folder, number).write_bytes(data)
    return prev_hash


def recs_of(folder: Path) -> list[bytes]:
    return [frame.rec for frame in read_boot(folder)]


@given(recs=st.lists(st.binary(min_size=1, max_size=300), max_size=8))
@settings(max_examples=50, deadline=None)
def test_what_was_written_is_read_back(tmp_path_factory: pytest.TempPathFactory, recs: list[bytes]) -> None:
    folder = tmp_path_factory.mktemp("segments")
    write_segment(folder, 1, 1, genesis("n", BOOT), recs)
    frames = list(read_boot(folder))
    assert [frame.rec for frame in frames] == recs
    assert [frame.seq for frame in frames] == list(range(1, len(recs) + 1))
    assert all(frame.hash == chain_hash(frame.prev_hash, frame.seq, frame.rec) for frame in frames)


@given(cut=st.integers(min_value=0, max_value=10_000))
@settings(max_examples=80, deadline=None)
def test_a_file_cut_anywhere_gives_the_whole_frames_before_the_cut(
    tmp_path_factory: pytest.TempPathFactory, cut: int
) -> None:
    folder = tmp_path_factory.mktemp("segments")
    recs = [bytes([65 + place]) * 100 for place in range(6)]
    write_segment(folder, 1, 1, genesis("n", BOOT), recs)
    path = segment_path(folder, 1)
    whole = path.read_bytes()
    cut %= len(whole)
    path.write_bytes(whole[:cut])
    frame_bytes = (len(whole) - HEADER_BYTES) // 6
    assert recs_of(folder) == recs[: max(0, (cut - HEADER_BYTES) // frame_bytes)]


@given(place=st.integers(min_value=0, max_value=10_000), bit=st.integers(min_value=0, max_value=7))
@settings(max_examples=80, deadline=None)
def test_a_flipped_bit_never_gives_a_changed_record(
    tmp_path_factory: pytest.TempPathFactory, place: int, bit: int
) -> None:
    folder = tmp_path_factory.mktemp("segments")
    recs = [bytes([65 + number]) * 100 for number in range(6)]
    write_segment(folder, 1, 1, genesis("n", BOOT), recs)
    path = segment_path(folder, 1)
    data = bytearray(path.read_bytes())
    data[place % len(data)] ^= 1 << bit
    path.write_bytes(bytes(data))
    read = recs_of(folder)
    assert read == recs[: len(read)]
    assert len(read) < len(recs)


def test_what_a_failed_group_left_is_overruled_by_the_next_segment(tmp_path: Path) -> None:
    head = write_segment(tmp_path, 1, 1, genesis("n", BOOT), [b"kept-1", b"kept-2"])
    with segment_path(tmp_path, 1).open("ab") as file:
        file.write(encode_frame(3, head, chain_hash(head, 3, b"given up"), b"", b"given up"))
    write_segment(tmp_path, 2, 3, head, [b"kept-3"])
    assert recs_of(tmp_path) == [b"kept-1", b"kept-2", b"kept-3"]


def test_reading_goes_on_from_an_offset(tmp_path: Path) -> None:
    write_segment(tmp_path, 1, 1, genesis("n", BOOT), [b"a", b"b", b"c"])
    path = segment_path(tmp_path, 1)
    header = read_header(path)
    assert header is not None
    first = next(read_frames(path, header, 0))
    assert [frame.rec for frame in read_frames(path, header, first.end)] == [b"b", b"c"]


def test_a_file_that_is_no_segment_has_no_header(tmp_path: Path) -> None:
    path = segment_path(tmp_path, 1)
    path.write_bytes(b"something else entirely, but longer than a header would be, so that its length is no excuse")
    assert read_header(path) is None
