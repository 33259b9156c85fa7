"""Places for requests, and the lane of operators: small, shared between sources, and never lost."""

from __future__ import annotations

from gateway.api.http.admission import Admission, InFlight

ADMIN = "/admin/v1/revocations"


def test_when_all_places_are_taken_operators_and_probes_still_get_in() -> None:
    flight = InFlight()
    admission = Admission(flight, most=2, operator_slots=8)
    assert [admission.enter("/v1/x", "a") for _ in range(3)] == ["ordinary", "ordinary", None]
    assert admission.enter(ADMIN, "operator") == "operators"
    assert admission.enter("/readyz", "balancer") == "ordinary"
    assert admission.enter("/admin/v1x", "a") is None
    assert (flight.count, flight.operators, flight.rejected) == (4, 1, 2)


def test_one_source_holds_only_a_part_of_the_lane() -> None:
    admission = Admission(InFlight(), most=0, operator_slots=8)
    assert [admission.enter(ADMIN, "stranger") for _ in range(4)] == ["operators", "operators", None, None]
    assert admission.enter(ADMIN, "operator") == "operators"


def test_the_lane_is_bounded_whoever_asks() -> None:
    admission = Admission(InFlight(), most=0, operator_slots=8)
    lanes = [admission.enter(ADMIN, f"source {number}") for number in range(12)]
    assert lanes == ["operators"] * 8 + [None] * 4


def test_operators_beyond_their_lane_use_the_places_of_all() -> None:
    flight = InFlight()
    admission = Admission(flight, most=1, operator_slots=1)
    assert [admission.enter(ADMIN, "a") for _ in range(3)] == ["operators", "ordinary", None]


def test_every_place_comes_back() -> None:
    flight = InFlight()
    admission = Admission(flight, most=1, operator_slots=4)
    for _ in range(3):
        for path in ("/v1/x", ADMIN):
            lane = admission.enter(path, "a")
            assert lane is not None
            admission.leave(lane, "a")
    assert (flight.count, flight.operators) == (0, 0)
    assert admission.enter("/v1/x", "a") == "ordinary"
