"""The record of an exchange: every fact that an auditor asks for, at its place, and no content."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest

from gateway.audit.canonical import CommitmentKey, parse_json
from gateway.audit.columns import DERIVED, decode_side, derive
from gateway.audit.committed import differing
from gateway.audit.event import Origin, Phase
from gateway.audit.notices import interrupted_record
from gateway.audit.personal import ABOUT
from gateway.audit.request_event import effect, request_caller, request_record
from gateway.flow.evolve import advance
from gateway.flow.parts import TextPart
from gateway.flow.stages import Exchange, Read, Reserved
from gateway.flow.tools import ToolSpec
from gateway.flow.values import ChatRequest, Finding, Message, Obligations, Outcome
from tests.fakes.exchanges import ALLOW, ANA, admitted, context, denied, finished, forbidden, refused

KEY = CommitmentKey(b"k" * 32)
ORIGIN = Origin("node-a", UUID(int=7), "0.1.0", KEY)
NOW = datetime(2026, 11, 30, 12, 0, 0, 7, tzinfo=UTC)


def document(exchange: Exchange, phase: Phase = "completion") -> dict[str, Any]:
    return parse_json(request_record(ORIGIN, UUID(int=1), NOW, phase, exchange, request_caller(ORIGIN, exchange)).rec)


def test_the_record_says_who_what_decided_and_used() -> None:
    written = document(finished(admitted()))
    assert written["who"]["roles"] == ["analyst", "employee"]
    assert written["what"]["params"] == {"max_tokens": 64, "n": 1, "seed": 7, "temperature": "0.7"}
    assert written["decision"]["rule_id"] == "r-7"
    assert written["decision"]["route_score_micro"] == 120_000
    assert written["usage"] == {
        "cost_micro": 9,
        "currency": "EUR",
        "source": "engine",
        "tokens_cached": 16,
        "tokens_in": 26,
        "tokens_out": 12,
    }
    assert written["timing"]["ttft_us"] == 21_000
    assert written["engine"]["mean_logprob_micro"] == -410_000


def test_the_record_says_how_many_tools_were_offered_and_called() -> None:
    exchange, tools = admitted(), (ToolSpec("clima"), ToolSpec("reloj"))
    offered = replace(exchange, request=ChatRequest("auto", (Message.of_text("user", "Hola"),), tools))
    written = document(finished(offered, tool_calls=3))
    assert (written["what"]["tools"], written["result"]["tool_calls"]) == (2, 3)
    assert "clima" not in str(written)
    plain = document(finished(exchange))
    assert "tools" not in plain["what"]
    assert "tool_calls" not in plain["result"]


def test_no_message_and_no_answer_is_in_the_record() -> None:
    exchange = finished(admitted(), completion_contents=((TextPart("el saldo es 12"),),))
    record = request_record(ORIGIN, UUID(int=1), NOW, "completion", exchange, request_caller(ORIGIN, exchange))
    for secret in ("saldo", "¿Cuál"):
        assert secret.encode() not in record.rec + record.side


def test_both_records_of_a_request_commit_to_the_same_prompt() -> None:
    exchange = admitted()
    by = request_caller(ORIGIN, exchange)
    intent = parse_json(request_record(ORIGIN, UUID(int=1), NOW, "intent", exchange, by).rec)
    done = parse_json(request_record(ORIGIN, UUID(int=2), NOW, "completion", finished(exchange), by).rec)
    assert intent["content"]["prompt_commit"] == done["content"]["prompt_commit"]
    assert document(exchange)["content"]["prompt_commit"] != intent["content"]["prompt_commit"]


def test_an_obligation_of_no_content_leaves_no_commitment() -> None:
    silent = replace(ALLOW, obligations=Obligations(content_logging="none"))
    assert document(admitted(decision=silent))["content"] == {"level": "none"}


def test_findings_are_listed_without_what_they_matched() -> None:
    found = Finding(detector="iban", category="pii", count=2, action="redact", direction="in", score=0.9, where="user")
    assert document(admitted(findings=(found,)))["safety"] == [
        {
            "action": "redact",
            "category": "pii",
            "count": 2,
            "detector": "iban",
            "direction": "in",
            "where": "user",
            "score_micro": 900_000,
        }
    ]


@pytest.mark.parametrize(
    ("exchange", "expected"),
    [
        (admitted(), "allow"),
        (finished(admitted()), "allow"),
        (finished(admitted(), Outcome.CLIENT_DISCONNECT), "allow"),
        (denied(), "deny"),
        (denied(code="budget_exceeded", status=429), "deny"),
        (denied(code="blocked_by_policy", status=400), "deny"),
        (refused(forbidden(), "invalid_json", 400, Outcome.ERROR), "error"),
        (refused(admitted(), "engine_unavailable", 503, Outcome.ERROR), "error"),
        (finished(admitted(), Outcome.ENGINE_ERROR), "error"),
    ],
)
def test_the_decision_tells_a_refusal_from_a_fault(exchange: Exchange, expected: str) -> None:
    assert effect(exchange) == expected


def test_labels_of_the_caller_are_cut_and_go_beside_the_record() -> None:
    exchange = admitted(context=context(user_agent="x" * 5000, client_request_id="y" * 5000, forwarded_for="10.1.1.1"))
    personal, salt = decode_side(request_caller(ORIGIN, exchange).side)
    assert (len(personal["user_agent"]), len(personal["client_request_id"])) == (256, 128)
    assert salt is not None
    committed = document(exchange)["who"]["commit"]
    assert set(committed) == set(personal) == {
        "subject", "display", "source_ip", "user_agent", "client_request_id", "forwarded_for",
    }  # fmt: skip


def test_columns_follow_from_the_record_alone() -> None:
    columns = dict(zip(DERIVED, derive(document(finished(admitted()))), strict=True))
    assert columns["ts"] == NOW
    assert columns["event_id"] == UUID(int=1)
    assert (columns["tenant"], columns["department"], columns["http_status"]) == ("acme", "finanzas", 200)
    assert (columns["tokens_in"], columns["cost_micro"], columns["total_us"]) == (26, 9, 330_000)


def test_a_number_beyond_64_bits_does_not_stop_the_record() -> None:
    exchange = admitted()
    request: Any = exchange.request
    huge = replace(request, params=replace(exchange.request.params, seed=2**80, temperature=float("nan")))
    params = document(replace(exchange, request=huge))["what"]["params"]
    assert (params["seed"], params["temperature"]) == (str(2**80), "nan")


def test_groups_and_scopes_are_kept_for_replay() -> None:
    who = document(admitted(replace(ANA, groups=frozenset({"g-2", "g-1"}), scopes=frozenset({"s"}))))["who"]
    assert (who["groups"], who["scopes"]) == (["g-1", "g-2"], ["s"])


def test_the_data_class_that_was_decided_by_is_on_record_also_when_none_was_sent() -> None:
    decided = replace(ALLOW, default_data_class="internal", named_words=frozenset({"restricted"}))
    silent = document(finished(admitted(asked=decided, decision=decided)))
    assert "data_class" not in silent["what"]
    assert silent["decision"]["data_class"] == "internal"
    stated = admitted(context=replace(context(), data_class="restricted"), asked=decided, decision=decided)
    assert document(finished(stated))["decision"]["data_class"] == "restricted"


def test_metadata_is_kept_as_erasable_labels_and_committed_to() -> None:
    exchange = admitted()
    labeled = replace(exchange, request=replace(exchange.request, metadata={"project": "p1", "Ana": "x" * 600}))
    record = request_record(ORIGIN, UUID(int=1), NOW, "intent", labeled, request_caller(ORIGIN, labeled))
    personal, _ = decode_side(record.side)
    assert personal["labels"] == {"project": "p1", "Ana": "x" * 512}
    assert b"project" not in record.rec
    assert "labels" in parse_json(record.rec)["who"]["commit"]


WORDS = frozenset({"internal", "billing"})


def stated(purpose: str, data_class: str, **changes: Any) -> Reserved:
    decided = replace(ALLOW, fixed_reason=True, named_words=WORDS, default_data_class="internal")
    said = replace(context(), purpose=purpose, data_class=data_class)
    return admitted(**{"context": said, "asked": decided, "decision": decided, **changes})


def test_words_that_the_policy_names_are_on_record_as_they_were_sent() -> None:
    written = document(stated("billing", "internal"))
    assert (written["what"]["purpose"], written["what"]["data_class"]) == ("billing", "internal")
    assert written["what"]["model_requested"] == "auto"
    assert written["decision"]["policy_reason"] == ALLOW.reason
    assert not {"purpose", "data_class", "model_requested"} & set(written["who"]["commit"])


@pytest.mark.parametrize(
    ("exchange", "free"),
    [
        (stated("for ana", "internal"), {"purpose": "for ana"}),
        (stated("billing", "of ana"), {"data_class": "of ana"}),
        # Before a policy decided nothing is known: there may be no such model.
        (refused(advance(stated("billing", "internal", model="ana"), Read), "policy_unavailable", 503, Outcome.ERROR),
         {"purpose": "billing", "data_class": "internal", "model_requested": "ana"}),
    ],
)  # fmt: skip
def test_any_other_word_of_the_caller_is_committed_to_and_goes_beside_the_record(
    exchange: Exchange, free: dict[str, str]
) -> None:
    record = request_record(ORIGIN, UUID(int=1), NOW, "intent", exchange, request_caller(ORIGIN, exchange))
    written, (personal, salt) = parse_json(record.rec), decode_side(record.side)
    assert free.items() <= personal.items()
    assert {written["what"][name] for name in free} == {"*"}
    assert b"ana" not in record.rec.replace(b"finanzas", b"").replace(b"analyst", b"")
    assert list(differing(written, {"subject": "u-1042", "personal": personal, "personal_salt": salt}, KEY)) == []
    changed = {**personal, **dict.fromkeys(free, "another")}
    row = {"subject": "u-1042", "personal": changed, "personal_salt": salt}
    assert list(differing(written, row, KEY)) == sorted(free)


def test_a_sentence_of_an_administrator_is_committed_to_with_a_salt_of_its_own() -> None:
    """Erasing the caller leaves it; erasing who it names takes it alone. Also where the process died meanwhile."""
    exchange = denied()
    record = request_record(ORIGIN, UUID(int=1), NOW, "intent", exchange, request_caller(ORIGIN, exchange))
    late = interrupted_record(ORIGIN, UUID(int=2), NOW, parse_json(record.rec), decode_side(record.side)[0])
    for one in (record, late):
        written, (personal, salt) = parse_json(one.rec), decode_side(one.side)
        assert b"only analysts" not in one.rec
        assert written["decision"]["policy_reason"] == "*"
        assert personal["policy_reason"] == "only analysts may use large models"
        about = {name: value for name, value in personal.items() if name in ABOUT}
        own = {name: value for name, value in personal.items() if name not in ABOUT}
        for row in (
            {"subject": "u-1042", "personal": personal, "personal_salt": salt},
            {"subject": None, "personal": about, "personal_salt": None},
            {"subject": "u-1042", "personal": own, "personal_salt": salt},
        ):
            assert list(differing(written, row, KEY)) == []
        row = {"subject": "u-1042", "personal": {**personal, "policy_reason": "x"}, "personal_salt": salt}
        assert list(differing(written, row, KEY)) == ["policy_reason"]
