"""The spool's disk fills up: no answer without a record, and it comes back by itself. Needs the right to mount."""

from __future__ import annotations

import asyncio
import collections
import contextlib
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chaos.conftest import Count, Start
from tests.fakes.load import Asked, ask, burst, reconcile


@pytest.fixture
def small_disk(folder: Path) -> Iterator[Path]:
    """Three megabytes of memory as a disk of its own."""
    place = folder / "disk"
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", str(place)], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("a tmpfs may not be mounted here")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


def fill(place: Path) -> None:
    with contextlib.suppress(OSError), (place / "fill").open("wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))


@pytest.mark.parametrize("mode", ["standard", "strict"])
async def test_a_full_disk_refuses_and_comes_back(gateway: Start, count: Count, small_disk: Path, mode: str) -> None:
    one = gateway(audit={"mode": mode, "spool_dir": str(small_disk / "spool")})
    await asyncio.to_thread(one.start)
    token = one.token()
    asked: list[Asked] = await burst(one.port, token, 30)
    streams = [asyncio.create_task(ask(one.port, token, max_tokens=150)) for _ in range(20)]
    await asyncio.sleep(0.5)
    fill(small_disk)
    full: list[Asked] = []
    began = time.monotonic()
    while time.monotonic() - began < 3:
        full.append(await ask(one.port, token, max_tokens=2))
    readiness = one.readiness()[0]
    (small_disk / "fill").unlink()
    asked += await asyncio.gather(*streams)
    deadline = time.monotonic() + 20
    while (await ask(one.port, token, max_tokens=2)).status != 200:
        assert time.monotonic() < deadline
        await asyncio.sleep(0.1)
    asked += await burst(one.port, token, 30)
    served = [each for each in full if each.status == 200]
    refused = [each for each in full if each.status == 503]
    trail = await reconcile(one.rows, [*asked, *served])
    assert await asyncio.to_thread(one.stop) == 0
    verified = await asyncio.to_thread(one.verify)
    statuses = dict(collections.Counter(each.status for each in full))
    count(requests=trail.ids, clean=trail.clean, lost=trail.lost, while_full=statuses, verify_exit=verified.returncode)
    assert refused
    assert len(served) + len(refused) == len(full)
    assert readiness == 503
    assert trail.wrong == []
    assert verified.returncode == 0, verified.stdout
