"""Frames on disk: what was written is read back, and damage takes only the frame that it hits."""

from __future__ import annotations

import errno
import os
import random
from pathlib import Path
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.audit.boot_reader import BootReader
from gateway.audit.canonical import canonical_json, chain_hash, genesis
from gateway.audit.mark import Mark
from gateway.audit.segment import (
    FRAME_OVERHEAD,
    HEADER_BYTES,
    Frame,
    encode_frame,
    encode_header,
    segment_path,
)
from gateway.audit.segment_reader import Hole, read_header, read_pieces
from gateway.audit.spool_types import Position

BOOT = UUID(int=7)


def boot_folder(parent: Path) -> Path:
    folder = parent / str(BOOT)
    folder.mkdir()
    return folder


def write_segment(folder: Path, number: int, first_seq: int, prev_hash: bytes, recs: list[bytes]) -> bytes:
    """A segment with these records; returns the hash of the last."""
    data = encode_header(BOOT, first_seq, prev_hash)
    for seq, rec in enumerate(recs, first_seq):
        own = chain_hash(prev_hash, seq, rec)
        data += encode_frame(seq, prev_hash, own, b"side", rec)
        prev_hash = own
    segment_path(folder, number).write_bytes(data)
    return prev_hash


def frames_of(folder: Path) -> list[Frame]:
    return BootReader(folder).batch(None, 10_000).frames


def recs_of(folder: Path) -> list[bytes]:
    return [frame.rec for frame in frames_of(folder)]


@given(recs=st.lists(st.binary(min_size=1, max_size=300), max_size=8))
@settings(max_examples=50, deadline=None)
def test_what_was_written_is_read_back(tmp_path_factory: pytest.TempPathFactory, recs: list[bytes]) -> None:
    folder = boot_folder(tmp_path_factory.mktemp("segments"))
    write_segment(folder, 1, 1, genesis("n", BOOT), recs)
    frames = frames_of(folder)
    assert [frame.rec for frame in frames] == recs
    assert [frame.seq for frame in frames] == list(range(1, len(recs) + 1))
    assert all(frame.hash == chain_hash(frame.prev_hash, frame.seq, frame.rec) for frame in frames)


@given(cut=st.integers(min_value=0, max_value=10_000))
@settings(max_examples=80, deadline=None)
def test_a_file_cut_anywhere_gives_the_whole_frames_before_the_cut(
    tmp_path_factory: pytest.TempPathFactory, cut: int
) -> None:
    folder = boot_folder(tmp_path_factory.mktemp("segments"))
    recs = [bytes([65 + place]) * 100 for place in range(6)]
    write_segment(folder, 1, 1, genesis("n", BOOT), recs)
    path = segment_path(folder, 1)
    whole = path.read_bytes()
    cut %= len(whole)
    path.write_bytes(whole[:cut])
    frame_bytes = (len(whole) - HEADER_BYTES) // 6
    assert recs_of(folder) == recs[: max(0, (cut - HEADER_BYTES) // frame_bytes)]


def test_every_flipped_byte_of_a_segment_costs_at_most_the_record_it_is_in(tmp_path: Path) -> None:
    folder = boot_folder(tmp_path)
    recs = [b"record %d of a small segment" % number for number in range(1, 7)]
    write_segment(folder, 1, 1, genesis("n", BOOT), recs)
    Mark(folder).put(Position(1, segment_path(folder, 1).stat().st_size, 6))
    path = segment_path(folder, 1)
    whole = path.read_bytes()
    frame_bytes = (len(whole) - HEADER_BYTES) // 6
    for place in range(len(whole)):
        for mask in (0xFF, 1 << place % 8):
            path.write_bytes(whole[:place] + bytes([whole[place] ^ mask]) + whole[place + 1 :])
            batch = BootReader(folder).batch(None, 10_000)
            hit = (place - HEADER_BYTES) // frame_bytes if place >= HEADER_BYTES else None
            assert [frame.rec for frame in batch.frames] == [rec for number, rec in enumerate(recs) if number != hit]
            (damage,) = batch.damages
            lost = (None, 0) if hit is None else (hit + 1, 1)
            assert (damage.first_seq if hit is not None else None, damage.records) == lost
            assert damage.start <= place < damage.end


@given(data=st.data())
@settings(max_examples=150, deadline=None)
def test_whatever_is_written_over_a_segment_no_other_record_is_lost_and_none_is_made_up(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    folder = boot_folder(tmp_path_factory.mktemp("segments"))
    recs = [bytes([65 + number]) * (40 + 30 * number) for number in range(8)]
    write_segment(folder, 1, 1, genesis("n", BOOT), recs)
    path = segment_path(folder, 1)
    whole = path.read_bytes()
    Mark(folder).put(Position(1, len(whole), 8))
    start = data.draw(st.integers(0, len(whole) - 1))
    junk = data.draw(st.binary(min_size=1, max_size=400) | st.integers(1, 400).map(bytes))[: len(whole) - start]
    damaged = whole[:start] + junk + whole[start + len(junk) :]
    path.write_bytes(damaged)
    batch = BootReader(folder).batch(None, 10_000)
    ends = [HEADER_BYTES + sum(FRAME_OVERHEAD + 4 + len(rec) for rec in recs[:count]) for count in range(9)]
    untouched = [n for n in range(8) if damaged[ends[n] : ends[n + 1]] == whole[ends[n] : ends[n + 1]]]
    assert [frame.seq for frame in batch.frames] == [number + 1 for number in untouched]
    assert [frame.rec for frame in batch.frames] == [recs[number] for number in untouched]
    named = {
        seq for one in batch.damages for seq in range(one.first_seq or 0, (one.first_seq or 0) + (one.records or 0))
    }
    assert named == set(range(1, 9)) - {number + 1 for number in untouched}


def test_what_a_failed_group_left_is_overruled_by_the_next_segment(tmp_path: Path) -> None:
    folder = boot_folder(tmp_path)
    head = write_segment(folder, 1, 1, genesis("n", BOOT), [b"kept-1", b"kept-2"])
    with segment_path(folder, 1).open("ab") as file:
        file.write(encode_frame(3, head, chain_hash(head, 3, b"given up"), b"", b"given up"))
    write_segment(folder, 2, 3, head, [b"kept-3"])
    assert recs_of(folder) == [b"kept-1", b"kept-2", b"kept-3"]


def test_reading_goes_on_from_an_offset(tmp_path: Path) -> None:
    folder = boot_folder(tmp_path)
    write_segment(folder, 1, 1, genesis("n", BOOT), [b"a", b"b", b"c"])
    path = segment_path(folder, 1)
    first = next(read_pieces(path, BOOT, 0))
    assert isinstance(first, Frame)
    rest = read_pieces(path, BOOT, first.end)
    assert [frame.rec for frame in rest if isinstance(frame, Frame)] == [b"b", b"c"]


def test_a_file_that_is_no_segment_has_no_header(tmp_path: Path) -> None:
    folder = boot_folder(tmp_path)
    path = segment_path(folder, 1)
    path.write_bytes(b"something else entirely, but longer than a header would be, so that its length is no excuse")
    assert read_header(path) is None


def test_behind_megabytes_of_zeros_or_of_random_bytes_the_next_record_is_found(tmp_path: Path) -> None:
    folder = boot_folder(tmp_path)
    head = write_segment(folder, 1, 1, genesis("n", BOOT), [b"before"])
    junk = bytes(1 << 20) + random.Random(7).randbytes(1 << 20)
    path = segment_path(folder, 1)
    before = path.stat().st_size
    with path.open("ab") as file:
        file.write(junk + encode_frame(5, head, chain_hash(head, 5, b"behind"), b"", b"behind"))
    pieces = list(read_pieces(path, BOOT, 0))
    assert pieces[1] == Hole(before, before + len(junk))
    assert [piece.rec for piece in pieces if isinstance(piece, Frame)] == [b"before", b"behind"]


def test_a_sector_that_the_disk_cannot_read_costs_the_records_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = boot_folder(tmp_path)
    recs = [bytes([65 + number]) * 3000 for number in range(8)]
    write_segment(folder, 1, 1, genesis("n", BOOT), recs)
    path = segment_path(folder, 1)
    Mark(folder).put(Position(1, path.stat().st_size, 8))
    real = os.pread

    def pread(descriptor: int, count: int, position: int) -> bytes:
        if position < 3 * 4096 and position + count > 2 * 4096:  # the third sector
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return real(descriptor, count, position)

    monkeypatch.setattr(os, "pread", pread)
    batch = BootReader(folder).batch(None, 100)
    starts = [HEADER_BYTES + number * (FRAME_OVERHEAD + len(b"side") + 3000) for number in range(9)]
    hit = [number for number in range(8) if starts[number] < 3 * 4096 and starts[number + 1] > 2 * 4096]
    assert [frame.seq for frame in batch.frames] == [number + 1 for number in range(8) if number not in hit]
    assert [(damage.first_seq, damage.records) for damage in batch.damages] == [(hit[0] + 1, len(hit))]


def test_no_text_a_caller_sends_can_pass_for_a_record(tmp_path: Path) -> None:
    """A record inside a record: JSON writes a zero byte as six characters, so a frame's head cannot occur in it."""
    folder = boot_folder(tmp_path)
    own = chain_hash(b"h" * 32, 2, b"{}")
    forged = encode_frame(2, b"h" * 32, own, b"", b"{}")
    rec = canonical_json({"text": forged.decode("latin-1")})
    assert b"\0" not in rec
    write_segment(folder, 1, 1, genesis("n", BOOT), [rec])
    path = segment_path(folder, 1)
    path.write_bytes(path.read_bytes().replace(b"side", b"SIDE"))
    assert [piece for piece in read_pieces(path, BOOT, 0) if isinstance(piece, Frame)] == []


def test_a_whole_segment_that_is_gone_is_named(tmp_path: Path) -> None:
    folder = boot_folder(tmp_path)
    head = write_segment(folder, 1, 1, genesis("n", BOOT), [b"1", b"2"])
    head = write_segment(folder, 2, 3, head, [b"3", b"4"])
    write_segment(folder, 3, 5, head, [b"5"])
    segment_path(folder, 2).unlink()
    batch = BootReader(folder).batch(None, 10)
    assert [frame.seq for frame in batch.frames] == [1, 2, 5]
    assert [(damage.first_seq, damage.records) for damage in batch.damages] == [(3, 2)]


@pytest.mark.parametrize(
    "raw", [b"", b"{", b"\0garbage", b'{"number":1,"offset":300,"seq":2,"crc":1}', b'{"number":[]}']
)
def test_a_damaged_checkpoint_only_ships_again(tmp_path: Path, raw: bytes) -> None:
    folder = boot_folder(tmp_path)
    write_segment(folder, 1, 1, genesis("n", BOOT), [b"1", b"2", b"3"])
    (folder / "checkpoint").write_bytes(raw)
    batch = BootReader(folder).batch(None, 10)
    assert ([frame.seq for frame in batch.frames], batch.damages) == ([1, 2, 3], [])


def test_a_checkpoint_of_an_older_version_is_taken_up(tmp_path: Path) -> None:
    folder = boot_folder(tmp_path)
    write_segment(folder, 1, 1, genesis("n", BOOT), [b"1", b"2", b"3"])
    first = next(read_pieces(segment_path(folder, 1), BOOT, 0))
    assert isinstance(first, Frame)
    (folder / "checkpoint").write_text(f'{{"number":1,"offset":{first.end}}}')
    assert [frame.seq for frame in BootReader(folder).batch(None, 10).frames] == [2, 3]
