"""Forms of uploads: however they are cut into pieces the file is the same, and no bytes do anything but be refused."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.api.upload import FormParts, pieces, reader_for
from gateway.errors import InvalidRequest, RequestTooLarge

BOUNDARY = "b0undary"
FILE = '--{0}\r\nContent-Disposition: form-data; name="file"; filename="{1}"\r\nContent-Type: text/plain\r\n\r\n'
PURPOSE = '--{0}\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n'


def read(body: bytes, cuts: list[int], size: int) -> tuple[FormParts, bytes]:
    reader = reader_for({"content-type": f"multipart/form-data; boundary={BOUNDARY}"}, 1_000_000)

    async def sent() -> AsyncIterator[bytes]:
        start = 0
        for cut in [*sorted(cut % (len(body) + 1) for cut in cuts), len(body)]:
            yield body[start:cut]
            start = cut

    async def whole() -> bytes:
        found = [piece async for piece in pieces(reader, sent(), size)]
        assert all(len(piece) == size for piece in found[:-1])
        return b"".join(found)

    return reader, asyncio.run(whole())


@settings(max_examples=150, deadline=None)
@given(
    content=st.binary(max_size=300) | st.text("\r\n-b0undary", max_size=60).map(str.encode),
    cuts=st.lists(st.integers(0, 1000), max_size=12),
    size=st.integers(1, 64),
    first=st.booleans(),
)
def test_a_file_is_the_same_however_it_is_cut(content: bytes, cuts: list[int], size: int, first: bool) -> None:
    if f"\r\n--{BOUNDARY}".encode() in b"\r\n" + content:
        return
    file = FILE.format(BOUNDARY, "in.jsonl").encode() + content + b"\r\n"
    purpose = PURPOSE.format(BOUNDARY).encode()
    body = (file + purpose if first else purpose + file) + f"--{BOUNDARY}--\r\n".encode()
    reader, found = read(body, cuts, size)
    assert found == content
    assert (reader.form.fields, reader.form.filename) == ({"purpose": "batch"}, "in.jsonl")


@settings(max_examples=200, deadline=None)
@given(
    body=st.binary(max_size=200)
    | st.lists(
        st.sampled_from(
            [
                f"--{BOUNDARY}",
                f"--{BOUNDARY}--",
                "\r\n",
                "\r\n\r\n",
                "Content-Disposition: form-data",
                '; name="file"',
                '; name="purpose"',
                "; filename*=UTF-8''%ff",
                '; name="expires_after[seconds]"',
                "Content-Transfer-Encoding: base64",
                "\x00",
                "x",
                ":",
                ";",
                '"',
            ]
        ),
        max_size=14,
    ).map(lambda parts: "".join(parts).encode()),
    cuts=st.lists(st.integers(0, 300), max_size=4),
)
def test_other_bytes_are_refused_by_an_error_of_ours(body: bytes, cuts: list[int]) -> None:
    with contextlib.suppress(InvalidRequest, RequestTooLarge):
        read(body, cuts, 16)


def test_a_boundary_is_bounded() -> None:
    assert reader_for({"content-type": 'multipart/form-data; boundary="a"'}, 10) is not None
    with pytest.raises(InvalidRequest):
        reader_for({"content-type": "multipart/form-data; boundary=" + "x" * 500}, 10)
