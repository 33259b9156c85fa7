"""No two commitments share a salt, whoever draws and however fast."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from gateway.audit.salts import BLOCK, SALT_BYTES, Salts


def test_salts_have_sixteen_bytes_and_never_repeat_over_many_blocks() -> None:
    salts = Salts()
    drawn = [salts.draw() for _ in range(BLOCK * 5 + 3)]
    assert {len(salt) for salt in drawn} == {SALT_BYTES}
    assert len(set(drawn)) == len(drawn)


def test_threads_that_draw_at_once_never_get_the_same() -> None:
    salts = Salts()
    with ThreadPoolExecutor(8) as pool:
        drawn = [salt for part in pool.map(lambda _: [salts.draw() for _ in range(2_000)], range(8)) for salt in part]
    assert len(set(drawn)) == 16_000
