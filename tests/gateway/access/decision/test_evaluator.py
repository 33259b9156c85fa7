"""How a decision is made: default deny, deny wins, conditions, obligations, what no document can lift."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from gateway.flow.values import ANONYMOUS, ModelCard
from tests.fakes.policies import AUTO, LARGE, NOON, SMALL, decide, policy, when, who

BASE = """
roles: {reader: {}, writer: {inherits: [reader]}}
rules:
  - {id: grant, effect: allow, subjects: {roles: [reader]}, actions: [chat], models: {any: true}}
"""
DENY = "  - {id: stop, effect: deny, reason: not on that one, subjects: {any: true}, models: {ids: [acme/large]}}\n"


def conditional(condition: str, effect: str = "allow") -> str:
    rule = f"subjects: {{roles: [reader]}}, actions: [chat], models: {{any: true}}, when: {condition}"
    grant = "" if effect == "allow" else BASE.partition("rules:\n")[2]
    return f"roles: {{reader: {{}}}}\nrules:\n{grant}  - {{id: c, effect: {effect}, {rule}}}\n"


def test_nothing_is_allowed_that_no_rule_grants() -> None:
    decision = decide(policy("rules: []"), who("reader"))
    assert (decision.allowed, decision.rule_id) == (False, None)
    assert decision.reason == "no rule grants you `chat` on `acme/small`"


def test_a_grant_allows_and_says_which_rule_and_version() -> None:
    snapshot = policy(BASE)
    decision = decide(snapshot, who("reader"))
    assert (decision.allowed, decision.rule_id, decision.policy_version) == (True, "grant", 7)
    assert decision.policy_sha256 == snapshot.sha256


def test_a_grant_is_inherited() -> None:
    assert decide(policy(BASE), who("writer")).allowed


def test_another_action_is_not_granted() -> None:
    assert not decide(policy(BASE), who("reader"), action="embeddings").allowed


def test_who_may_use_a_model_in_one_way_may_count_its_tokens_under_the_same_duties() -> None:
    rule = "subjects: {roles: [reader]}, actions: [embeddings], models: {ids: [acme/small]}"
    snapshot = policy(f"""
roles: {{reader: {{}}}}
rules:
  - {{id: grant, effect: allow, {rule}, obligations: {{redaction: block}}}}
  - {{id: stop, effect: deny, reason: no chats, subjects: {{any: true}}, actions: [chat], models: {{any: true}}}}
""")
    decision = decide(snapshot, who("reader"), SMALL, action="tokenize")
    assert (decision.allowed, decision.rule_id, decision.obligations.redaction) == (True, "grant", "block")
    other = decide(snapshot, who("reader"), LARGE, action="tokenize")
    assert (other.allowed, other.rule_id, other.reason) == (False, "stop", "no chats")
    assert not decide(snapshot, who("nobody"), SMALL, action="tokenize").allowed


def test_a_deny_wins_over_a_grant_and_gives_its_public_reason() -> None:
    decision = decide(policy(BASE + DENY), who("reader"), LARGE)
    assert (decision.allowed, decision.rule_id, decision.reason) == (False, "stop", "not on that one")
    assert decision.matched == ("grant", "stop")


def test_a_deny_for_other_models_does_not_hurt() -> None:
    assert decide(policy(BASE + DENY), who("reader"), SMALL).allowed


def test_a_deny_without_models_covers_administration_too() -> None:
    rules = """
    roles: {adm: {}}
    rules:
      - {id: grant, effect: allow, subjects: {roles: [adm]}, actions: [audit.read]}
      - {id: stop, effect: deny, subjects: {principals: ["https://idp#ana"]}}
    """
    assert not decide(policy(rules), who("adm"), None, "audit.read").allowed
    assert decide(policy(rules), who("adm", subject="eva"), None, "audit.read").allowed


def test_a_deny_on_models_does_not_touch_administration() -> None:
    rules = """
    roles: {adm: {}}
    rules:
      - {id: grant, effect: allow, subjects: {roles: [adm]}, actions: [audit.read]}
      - {id: stop, effect: deny, subjects: {any: true}, models: {any: true}}
    """
    assert decide(policy(rules), who("adm"), None, "audit.read").allowed


def test_an_administrative_grant_gives_no_model() -> None:
    rules = "roles: {adm: {}}\nrules: [{id: g, effect: allow, subjects: {roles: [adm]}, actions: [policy.write]}]"
    assert not decide(policy(rules), who("adm"), SMALL, "chat").allowed


@pytest.mark.parametrize(
    ("filters", "allowed", "refused"),
    [
        ("types: [service]", {"kind": "service"}, {"kind": "user"}),
        ("departments: [risk]", {"department": "risk"}, {"department": "sales"}),
        ("departments: [risk]", {"department": "risk"}, {"department": None}),
        ("tenants: [acme]", {"tenant": "acme"}, {"tenant": "rival"}),
    ],
)
def test_filters_narrow_a_grant(filters: str, allowed: dict[str, str], refused: dict[str, str]) -> None:
    snapshot = policy(BASE.replace("{roles: [reader]}", f"{{roles: [reader], {filters}}}"))
    assert decide(snapshot, who("reader", **allowed)).allowed
    assert not decide(snapshot, who("reader", **refused)).allowed


def test_a_principal_is_issuer_and_subject_together() -> None:
    snapshot = policy(BASE.replace("{roles: [reader]}", '{principals: ["https://idp#ana"]}'))
    assert decide(snapshot, who()).allowed
    assert not decide(snapshot, who(issuer="https://idp.evil")).allowed


@pytest.mark.parametrize("role", ["*", "Reader", "reader ", "reader\u200b", "reаder"])
def test_a_role_that_only_looks_like_one_gives_nothing(role: str) -> None:
    assert not decide(policy(BASE), who(role)).allowed


@pytest.mark.parametrize("name", ["ACME/small", "acme/small ", "acme/small\u200b", "acme/smаll", "*", "acme/*", ""])
def test_a_model_name_that_only_looks_like_a_granted_one_is_refused(name: str) -> None:
    snapshot = policy(BASE.replace("any: true}}", 'ids: [acme/small, "acme/l*"]}}'))
    assert not decide(snapshot, who("reader"), ModelCard(name, "b")).allowed


def test_auto_is_granted_apart_from_what_it_resolves_to() -> None:
    snapshot = policy(BASE.replace("{any: true}", "{ids: [auto, acme/small]}"))
    assert [decide(snapshot, who("reader"), card).allowed for card in (AUTO, SMALL, LARGE)] == [True, True, False]


def test_nobody_gets_nothing_even_from_a_rule_for_everybody() -> None:
    snapshot = policy(BASE.replace("{roles: [reader]}", "{any: true}"))
    decision = decide(snapshot, ANONYMOUS)
    assert (decision.allowed, decision.rule_id) == (False, "builtin:anonymous")


def test_a_narrowed_credential_reaches_only_its_models() -> None:
    key = who("reader", narrowed_models=("acme/small",))
    assert decide(policy(BASE), key, SMALL).allowed
    assert decide(policy(BASE), key, LARGE).rule_id == "builtin:narrowed-credential"


def test_a_credential_narrowed_to_nothing_reaches_nothing() -> None:
    assert not decide(policy(BASE), who("reader", narrowed_models=())).allowed


@pytest.mark.parametrize(
    ("clearance", "data_class", "allowed"),
    [
        ("internal", "internal", True),
        ("internal", "confidential", False),
        ("internal", None, True),
        ("public", None, False),
        ("restricted", "restricted", True),
        ("nonsense", "public", False),
        ("internal", "nonsense", False),
        (None, "restricted", True),
    ],
)
def test_a_clearance_bounds_the_data_class(clearance: str | None, data_class: str | None, allowed: bool) -> None:
    decision = decide(policy(BASE), who("reader", clearance=clearance), context=when(data_class=data_class))
    assert decision.allowed is allowed


@pytest.mark.parametrize(
    ("condition", "context", "holds"),
    [
        ("{dataClass: {max: internal}}", {"data_class": "public"}, True),
        ("{dataClass: {max: internal}}", {"data_class": "confidential"}, False),
        ("{dataClass: {min: confidential}}", {"data_class": "restricted"}, True),
        ("{dataClass: {min: confidential}}", {"data_class": "internal"}, False),
        ("{dataClass: {min: internal, max: confidential}}", {"data_class": "restricted"}, False),
        ("{dataClass: {max: internal}}", {}, True),
        ("{purpose: {in: [support]}}", {"purpose": "support"}, True),
        ("{purpose: {in: [support]}}", {"purpose": "Support"}, False),
        ("{purpose: {notIn: [ads]}}", {"purpose": "support"}, True),
        ("{purpose: {notIn: [ads]}}", {"purpose": "ads"}, False),
        ("{sourceCidr: [10.0.0.0/8]}", {"ip": "10.9.9.9"}, True),
        ("{sourceCidr: [10.0.0.0/8]}", {"ip": "11.0.0.1"}, False),
        ("{sourceCidr: [10.0.0.0/8]}", {"ip": "::ffff:10.9.9.9"}, True),
        ("{sourceCidr: ['fd00::/8']}", {"ip": "fd00::1"}, True),
        ("{sourceCidr: ['fd00::/8']}", {"ip": "10.0.0.1"}, False),
    ],
)
@pytest.mark.parametrize("effect", ["allow", "deny"])
def test_a_condition_that_can_be_decided(condition: str, context: dict[str, Any], holds: bool, effect: str) -> None:
    decision = decide(policy(conditional(condition, effect)), who("reader"), context=when(**context))
    assert decision.allowed is (holds if effect == "allow" else not holds)


@pytest.mark.parametrize(
    ("condition", "context"),
    [
        ("{dataClass: {max: restricted}}", {"data_class": "top-secret"}),
        ("{dataClass: {min: public}}", {"data_class": "INTERNAL"}),
        ("{purpose: {in: [support]}}", {}),
        ("{purpose: {notIn: [ads]}}", {}),
        ("{sourceCidr: [10.0.0.0/8]}", {}),
        ("{sourceCidr: [10.0.0.0/8]}", {"ip": "unknown"}),
    ],
)
@pytest.mark.parametrize("effect", ["allow", "deny"])
def test_a_condition_that_cannot_be_decided_never_opens_a_door(
    condition: str, context: dict[str, Any], effect: str
) -> None:
    assert not decide(policy(conditional(condition, effect)), who("reader"), context=when(**context)).allowed


def test_a_part_that_is_plainly_false_settles_a_condition_with_a_gap() -> None:
    snapshot = policy(conditional("{purpose: {in: [ads]}, dataClass: {min: restricted}}", "deny"))
    assert decide(snapshot, who("reader"), context=when(data_class="public")).allowed


@pytest.mark.parametrize(("client", "allowed"), [("chat-ui", True), ("other", False), (None, False)])
def test_a_token_without_a_client_is_none_of_the_listed_ones(client: str | None, allowed: bool) -> None:
    snapshot = policy(conditional("{clients: [chat-ui]}"))
    assert decide(snapshot, who("reader", client_id=client)).allowed is allowed


OFFICE = "{time: {tz: America/Bogota, days: [mon-fri], from: '07:00', to: '20:00'}}"
NIGHT = "{time: {tz: UTC, days: [fri], from: '22:00', to: '06:00'}}"
MADRID = "{time: {tz: Europe/Madrid, from: '08:00', to: '18:00'}}"


@pytest.mark.parametrize(
    ("condition", "at", "holds"),
    [
        (OFFICE, "2026-11-30T12:00:00", True),  # Monday 07:00 in Bogotá
        (OFFICE, "2026-11-30T11:59:59", False),
        (OFFICE, "2026-12-01T00:59:59", True),  # Monday 19:59 in Bogotá, already Tuesday in UTC
        (OFFICE, "2026-12-01T01:00:00", False),
        (OFFICE, "2026-11-28T15:00:00", False),  # Saturday
        (NIGHT, "2026-11-27T22:00:00", True),  # Friday
        (NIGHT, "2026-11-28T05:59:00", True),  # Saturday, still Friday's night
        (NIGHT, "2026-11-28T06:00:00", False),
        (NIGHT, "2026-11-28T22:30:00", False),  # Saturday's own night
        (NIGHT, "2026-11-27T05:00:00", False),  # Thursday's night
        (MADRID, "2026-03-28T07:00:00", True),  # 08:00 in winter time
        (MADRID, "2026-03-29T06:00:00", True),  # 08:00 on the day summer time begins
        (MADRID, "2026-03-28T06:59:00", False),
        (MADRID, "2026-10-25T07:00:00", True),  # 08:00 on the day summer time ends
        (MADRID, "2026-10-25T06:00:00", False),
    ],
)
def test_a_window_keeps_its_hours_on_the_wall_clock_of_its_zone(condition: str, at: str, holds: bool) -> None:
    moment = datetime.fromisoformat(at).replace(tzinfo=UTC)
    assert decide(policy(conditional(condition)), who("reader"), context=when(moment)).allowed is holds


def test_obligations_of_all_grants_are_merged_to_the_strictest() -> None:
    snapshot = policy(
        """
        roles: {a: {}, b: {}}
        rules:
          - id: a
            effect: allow
            subjects: {roles: [a]}
            actions: [chat]
            models: {any: true}
            obligations: {maxOutputTokens: 500, redaction: flag, contentLogging: encrypted, priority: 5,
                          responseStoreDays: 30}
          - id: b
            effect: allow
            subjects: {roles: [b]}
            actions: [chat]
            models: {any: true}
            obligations: {maxOutputTokens: 900, redaction: block, contentLogging: none, priority: -5,
                          guardrails: strict, tools: denied, shareWeight: 0.5, responseStoreDays: 7}
        """
    )
    merged = decide(snapshot, who("a", "b")).obligations
    assert (merged.max_output_tokens, merged.redaction, merged.guardrails) == (500, "block", "strict")
    assert (merged.content_logging, merged.priority, merged.share_weight) == ("encrypted", 5, 0.5)
    assert merged.tools == "denied"
    assert merged.response_store_days == 7


def test_a_required_locality_refuses_a_model_elsewhere() -> None:
    snapshot = policy(BASE.replace("{any: true}}", "{any: true}, obligations: {requireLocality: home}}"))
    assert decide(snapshot, who("reader"), SMALL).obligations.require_locality == "home"
    assert decide(snapshot, who("reader"), LARGE).rule_id == "builtin:locality"
    assert decide(snapshot, who("reader"), AUTO).allowed


def test_two_different_localities_cannot_both_be_met() -> None:
    snapshot = policy(
        """
        roles: {a: {}, b: {}}
        rules:
          - {id: a, effect: allow, subjects: {roles: [a]}, actions: [chat], models: {any: true},
             obligations: {requireLocality: home}}
          - {id: b, effect: allow, subjects: {roles: [b]}, actions: [chat], models: {any: true},
             obligations: {requireLocality: eu}}
        """
    )
    assert decide(snapshot, who("a"), SMALL).allowed
    assert decide(snapshot, who("a", "b"), SMALL).rule_id == "builtin:locality"


@pytest.mark.parametrize("hidden", [True, False])
def test_a_refused_model_is_hidden_when_the_policy_says_so(hidden: bool) -> None:
    snapshot = policy(f"settings: {{hideModels: {str(hidden).lower()}}}\nrules: []")
    assert decide(snapshot, who()).hidden is hidden
    assert decide(snapshot, who(), None, "audit.read").hidden is False


GROUPS = """
roles: {legal: {}}
roleMappings: [{provider: entra, claim: groups, equals: g-1, roles: [legal]}]
rules: [{id: g, effect: allow, subjects: {roles: [legal]}, actions: [chat], models: {any: true}}]
"""


def test_a_group_becomes_a_role_only_for_its_provider() -> None:
    groups = frozenset({"g-1"})
    assert decide(policy(GROUPS), who(groups=groups, provider="entra")).allowed
    assert not decide(policy(GROUPS), who(groups=groups, provider="okta")).allowed
    assert not decide(policy(GROUPS), who(groups=groups)).allowed


def test_a_group_is_not_taken_for_a_role_or_a_scope() -> None:
    assert not decide(policy(GROUPS), who("g-1", scopes=frozenset({"g-1"}), provider="entra")).allowed


def test_a_binding_gives_roles_until_it_expires() -> None:
    snapshot = policy(
        """
        roles: {legal: {}}
        roleBindings:
          - {id: b, roles: [legal], principals: ["https://idp#ana"], expires: "2026-01-05T12:00:00Z"}
        rules: [{id: g, effect: allow, subjects: {roles: [legal]}, actions: [chat], models: {any: true}}]
        """
    )
    before = datetime(2026, 1, 5, 11, 59, 59, tzinfo=UTC)
    assert decide(snapshot, who(), context=when(before)).allowed
    assert not decide(snapshot, who(), context=when()).allowed
    assert not decide(snapshot, who(subject="eva"), context=when(before)).allowed


def test_a_card_that_the_snapshot_does_not_know_is_judged_by_the_same_rules() -> None:
    snapshot = policy(BASE + DENY)
    relabeled = replace(LARGE, labels={})
    assert decide(snapshot, who("reader"), relabeled).rule_id == "stop"


CONDITIONAL = """
roles: {r: {}}
rules:
  - {id: g, effect: allow, subjects: {roles: [r]}, actions: [chat], models: {any: true},
     when: {purpose: {in: [support]}, time: {tz: UTC, from: "08:00", to: "18:00"}}}
"""


def test_a_refusal_says_which_condition_of_a_grant_is_not_met() -> None:
    snapshot = policy(CONDITIONAL)
    unstated = decide(snapshot, who("r"))
    assert unstated.reason == "no rule grants you `chat` on `acme/small`: purpose is not stated"
    assert unstated.hint == "state what it is for in the header `x-esclusa-purpose`"
    other = decide(snapshot, who("r"), context=when(purpose="fun"))
    assert (other.reason, other.hint) == ("no rule grants you `chat` on `acme/small`: not for this purpose", None)
    late = decide(snapshot, who("r"), context=when(NOON.replace(hour=22), purpose="support"))
    assert late.reason.endswith(": not at this time")
    assert (
        decide(snapshot, who(), context=when(purpose="support")).reason == "no rule grants you `chat` on `acme/small`"
    )
