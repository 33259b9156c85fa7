"""Strikes need evidence that the engine itself was well, and they expire."""

from __future__ import annotations

import pytest

from engine.serving.poison import EXPIRES_S, EXPIRES_STEPS, PoisonGuard

POISON, OTHER, THIRD = b"poison", b"other", b"third"


def refused_twice() -> PoisonGuard:
    guard = PoisonGuard()
    for _ in range(2):
        guard.blame(POISON, 0.0, proven=True)
    return guard


def test_two_failures_beside_others_that_ran_well_are_two_strikes() -> None:
    guard = PoisonGuard()
    guard.blame(POISON, 0.0, proven=True)
    assert guard.is_suspect(POISON, 0.0)
    assert not guard.refuses(POISON, 0.0)
    guard.blame(POISON, 0.0, proven=True)
    assert guard.refuses(POISON, 0.0)
    assert not guard.refuses(OTHER, 0.0)
    assert guard.refused == 1


def test_a_failure_alone_is_a_strike_only_once_somebody_else_ran_well() -> None:
    guard = PoisonGuard()
    for _ in range(5):
        guard.blame(POISON, 0.0, proven=False)
    assert not guard.refuses(POISON, 0.0)
    guard.ran_well([POISON], 0.0)
    assert guard.wants_evidence
    guard.ran_well([OTHER], 0.0)
    guard.blame(POISON, 0.0, proven=False)
    assert not guard.refuses(POISON, 0.0)
    guard.ran_well([OTHER, POISON], 0.0)
    assert guard.refuses(POISON, 0.0)


def test_failures_of_several_requests_alone_are_nobodys_strike() -> None:
    guard = PoisonGuard()
    for _ in range(10):
        for fingerprint in (POISON, OTHER):
            guard.blame(fingerprint, 0.0, proven=False)
    guard.ran_well([THIRD], 0.0)
    assert not any(guard.refuses(fingerprint, 0.0) for fingerprint in (POISON, OTHER, THIRD))


def test_who_ends_well_is_cleared() -> None:
    guard = refused_twice()
    guard.ended_well(POISON)
    assert not guard.is_suspect(POISON, 0.0)
    assert guard.is_idle


@pytest.mark.parametrize(("seconds", "steps"), [(EXPIRES_S + 1, 0), (0.0, EXPIRES_STEPS + 1)])
def test_strikes_expire_with_time_and_with_steps(seconds: float, steps: int) -> None:
    guard = refused_twice()
    for _ in range(steps):
        guard.ran_well((), 0.0)
    assert not guard.refuses(POISON, seconds)
    guard.blame(POISON, seconds, proven=True)
    assert not guard.refuses(POISON, seconds)


def test_an_operator_clears_everything() -> None:
    guard = refused_twice()
    guard.blame(OTHER, 0.0, proven=False)
    guard.clear()
    assert guard.is_idle
    assert not guard.refuses(POISON, 0.0)
    assert not guard.wants_evidence


def test_memory_is_bounded() -> None:
    guard = PoisonGuard()
    for number in range(5000):
        guard.suspect(b"%d" % number, 0.0)
    assert sum(guard.is_suspect(b"%d" % number, 0.0) for number in range(5000)) == 1024
