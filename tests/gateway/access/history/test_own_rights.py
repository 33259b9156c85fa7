"""Nobody gives model use, or an easier guard, to themselves or to an account of theirs, by any way at all. Pure."""

from __future__ import annotations

from datetime import timedelta

import pytest

from gateway.access.history.grants import first_objection
from gateway.access.history.own_rights import first_gain
from gateway.flow.values import Principal
from gateway.identity.api_keys import ISSUER as MACHINES
from tests.fakes.policies import NOON, policy, when, who

BASE = """
roles:
  employee: {}
  analyst: {}
  admin: {}
  maker: {}
modelGroups:
  small: [acme/small]
rules:
  - {id: administers, effect: allow, subjects: {roles: [admin]}, actions: [policy.read, policy.write]}
  - {id: makes, effect: allow, subjects: {roles: [maker]}, actions: [identity.write]}
  - {id: works, effect: allow, subjects: {roles: [employee]}, actions: [chat], models: {groups: [small]},
     when: {purpose: {in: [support]}, time: {tz: Europe/Madrid, from: "09:00", to: "17:00"},
            sourceCidr: [10.0.0.0/8], dataClass: {max: internal}},
     obligations: {redaction: redact, maxOutputTokens: 100, guardrails: strict, contentLogging: encrypted}}
  - {id: studies, effect: allow, subjects: {roles: [analyst]}, actions: [chat], models: {ids: [acme/large]}}
  - {id: not-large, effect: deny, subjects: {departments: [it], any: true}, models: {ids: [acme/large]}}
"""
ADMIN = who("admin", department="it", groups=frozenset({"g-7"}), provider="corp", client_id="console")
ALSO_EMPLOYEE = who("admin", "employee", department="it", client_id="console")
ALSO_ANALYST = who("admin", "analyst", department="it")
MAKER = who("admin", "maker", department="it")
ACCOUNT = Principal("acme", MACHINES, "a-1", "service", frozenset({"admin"}), display="robot", owner=("i", "s"))


def gain(
    after: str,
    author: Principal = ADMIN,
    *owned: Principal,
    before: str = BASE,
    seen: tuple[Principal, ...] = (),
) -> str | None:
    assert after != before
    found = first_gain(policy(before), policy(after), author, owned, when(), seen)
    return None if found is None else found.sentence


def rule(body: str, text: str = BASE) -> str:
    return f"{text}  - {{id: x, effect: allow, actions: [chat], models: {{groups: [small]}}, {body}}}\n"


def chat(model: str = "small") -> str:
    return f"This change would give you `chat` on `acme/{model}`."


def eased(what: str) -> str:
    return f"This change would ease `{what}` for you in `chat` on `acme/small`."


@pytest.mark.parametrize(
    "after",
    [
        pytest.param(rule("subjects: {any: true}"), id="everybody"),
        pytest.param(rule("subjects: {any: true, departments: [it]}"), id="their department"),
        pytest.param(rule("subjects: {any: true, types: [user], tenants: [acme]}"), id="their kind and tenant"),
        pytest.param(rule("subjects: {roles: [admin]}"), id="a role they hold"),
        pytest.param(rule('subjects: {principals: ["https://idp#ana"]}'), id="their name"),
        pytest.param(rule("subjects: {any: true}, when: {purpose: {in: [once]}}"), id="for one purpose"),
        pytest.param(rule("subjects: {any: true}, when: {clients: [another]}"), id="from another client"),
        pytest.param(rule("subjects: {any: true}, when: {dataClass: {min: restricted}}"), id="for one class"),
        pytest.param(rule("subjects: {any: true}, when: {sourceCidr: [192.0.2.7/32]}"), id="from one address"),
        pytest.param(
            rule('subjects: {any: true}, when: {time: {tz: UTC, days: [sun], from: "03:00", to: "03:01"}}'),
            id="for one minute of the week",
        ),
        pytest.param(BASE.replace("  admin: {}", "  admin: {inherits: [employee]}"), id="an inherited role"),
        pytest.param(
            BASE + "roleMappings: [{provider: corp, claim: groups, equals: g-7, roles: [employee]}]\n",
            id="a group they are in",
        ),
        pytest.param(
            BASE + 'roleBindings: [{id: b, roles: [employee], principals: ["https://idp#ana"]}]\n', id="a binding"
        ),
    ],
)
def test_use_is_gained_by_no_way(after: str) -> None:
    assert gain(after) == chat()


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("groups: [small]", "any: true", "This change would give you `chat` on `auto`."),
        ("in: [support]", "in: [support, leisure]", chat()),
        ('to: "17:00"', 'to: "17:01"', chat()),
        ('from: "09:00", to: "17:00"', 'from: "08:00", to: "16:00"', chat()),
        ("tz: Europe/Madrid", "tz: America/Bogota", chat()),
        ("[10.0.0.0/8]", "[10.0.0.0/8, 192.0.2.0/24]", chat()),
        ("[10.0.0.0/8]", "[10.0.0.0/7]", chat()),
        ("dataClass: {max: internal}", "dataClass: {max: confidential}", chat()),
        ("sourceCidr: [10.0.0.0/8], ", "", chat()),
        ("redaction: redact", "redaction: flag", eased("redaction")),
        ("redaction: redact, ", "", eased("redaction")),
        ("maxOutputTokens: 100", "maxOutputTokens: 101", eased("maxOutputTokens")),
        ("guardrails: strict", "guardrails: default", eased("guardrails")),
        ("contentLogging: encrypted", "contentLogging: none", eased("contentLogging")),
    ],
)
def test_a_role_that_an_author_also_holds_is_not_widened_or_eased(old: str, new: str, expected: str) -> None:
    assert gain(BASE.replace(old, new), ALSO_EMPLOYEE) == expected


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('to: "17:00"', 'to: "16:00"'),
        ("when: {purpose", "when: {clients: [console], purpose"),
        ("[10.0.0.0/8]", "[10.1.0.0/16]"),
        ("dataClass: {max: internal}", "dataClass: {max: public}"),
        ("redaction: redact", "redaction: block"),
        ("maxOutputTokens: 100", "maxOutputTokens: 50"),
        ("id: works", "id: works-as-before"),
    ],
)
def test_an_author_may_narrow_what_is_theirs(old: str, new: str) -> None:
    assert gain(BASE.replace(old, new), ALSO_EMPLOYEE) is None


def test_others_are_given_what_an_author_does_not_get() -> None:
    assert gain(rule("subjects: {roles: [analyst]}")) is None
    assert gain(rule("subjects: {any: true, departments: [sales]}")) is None


def test_lifting_a_deny_is_a_gain() -> None:
    assert gain(BASE.replace("departments: [it]", "departments: [sales]"), ALSO_ANALYST) == chat("large")


def test_taking_a_stricter_rule_away_eases_what_is_left() -> None:
    """Obligations of several grants are merged to the strictest, so less grants can mean less guard."""
    everybody = rule("subjects: {any: true}")
    strict = rule("subjects: {roles: [admin]}, obligations: {redaction: block}", everybody.replace("id: x", "id: y"))
    assert gain(everybody, ADMIN, before=strict) == eased("redaction")


def test_tools_that_were_denied_are_not_given_to_oneself() -> None:
    before = BASE.replace("contentLogging: encrypted}}", "contentLogging: encrypted, tools: denied}}")
    assert gain(BASE, ALSO_EMPLOYEE, before=before) == eased("tools")


def test_nobody_lets_their_own_responses_be_kept() -> None:
    after = BASE.replace("contentLogging: encrypted}}", "contentLogging: encrypted, responseStoreDays: 1}}")
    assert gain(after, ALSO_EMPLOYEE) == eased("responseStoreDays")


def test_another_default_class_is_compared_too() -> None:
    """Who states no class is taken for `confidential` before, and for `internal`, which is allowed, afterwards."""
    before = BASE + "settings: {defaultDataClass: confidential}\n"
    assert gain(BASE, ALSO_EMPLOYEE, before=before) == chat()
    assert gain(before, ALSO_EMPLOYEE) is None


def test_a_binding_that_lives_longer_is_a_gain_and_a_shorter_one_is_none() -> None:
    text = BASE + 'roleBindings: [{id: b, roles: [employee], principals: ["https://idp#ana"], expires: "%s"}]\n'
    short, long = (text % (NOON + timedelta(days=days)).isoformat() for days in (40, 4000))
    assert gain(long, before=short) == chat()
    assert gain(short, before=long) is None
    assert gain(BASE, before=long) is None


@pytest.mark.parametrize(
    "after",
    [
        rule(f'subjects: {{principals: ["{MACHINES}#a-1"]}}'),
        BASE + f'roleBindings: [{{id: b, roles: [employee], principals: ["{MACHINES}#a-1"]}}]\n',
        rule("subjects: {any: true, types: [service]}"),
    ],
)
def test_an_account_of_theirs_gains_nothing_either(after: str) -> None:
    assert gain(after, ADMIN, ACCOUNT) == "This change would give your service account `robot` `chat` on `acme/small`."
    assert gain(after, ADMIN) is None


def test_an_account_that_could_be_made_tomorrow_counts_for_whoever_makes_accounts() -> None:
    after = rule("subjects: {any: true, types: [service]}")
    assert gain(after, MAKER) is not None
    assert gain(after, ADMIN) is None


def test_more_situations_than_can_be_compared_are_a_gain() -> None:
    """Refused rather than believed: 60 purposes, 60 clients and 60 networks in all combinations."""
    conditions = "\n".join(
        f"  - {{id: r{n}, effect: allow, subjects: {{any: true}}, actions: [chat], models: {{groups: [small]}},"
        f" when: {{clients: [c{n}], purpose: {{in: [p{n}]}}, sourceCidr: [10.{n}.0.0/16]}}}}"
        for n in range(60)
    )
    assert gain(f"{BASE}{conditions}\n", ALSO_EMPLOYEE) == chat()


def test_with_four_eyes_a_second_human_agrees_to_what_the_author_gains() -> None:
    before, after = policy(BASE), policy(rule("subjects: {any: true}"))
    alone = first_objection(before, after, ADMIN, when())
    assert alone is not None
    assert alone.code == "cannot_grant_beyond_own_rights"
    assert "access.four_eyes" in alone.hint
    with_approvers = BASE.replace("policy.write]", "policy.write, policy.approve]")
    agreed = policy(rule("subjects: {any: true}", with_approvers))
    assert first_objection(policy(with_approvers), agreed, ADMIN, when(), four_eyes=True) is None


@pytest.mark.parametrize(
    "after",
    [
        rule('subjects: {principals: ["https://idp#ana"]}'),
        BASE + 'roleBindings: [{id: b, roles: [employee], principals: ["https://idp#ana"]}]\n',
        rule("subjects: {any: true, types: [user]}"),
    ],
)
def test_a_key_gives_nothing_to_the_person_who_owns_it(after: str) -> None:
    key = Principal("acme", MACHINES, "a-1", "service", frozenset({"admin"}), owner=("https://idp", "ana"))
    assert gain(after, key) == "This change would give its owner `chat` on `acme/small`."


WIDENED = BASE.replace("redaction: redact", "redaction: flag")


@pytest.mark.parametrize(
    "seen",
    [
        pytest.param((who("employee"),), id="another token of theirs"),
        pytest.param((who("admin", "employee"), who("admin")), id="one of several"),
        pytest.param((who("admin", "employee", tenant="rival"),), id="in another tenant"),
        pytest.param((who("admin", "employee", clearance="public"),), id="with a clearance that a token may lack"),
    ],
)
def test_a_narrower_token_hides_nothing_that_its_holder_was_seen_with(seen: tuple[Principal, ...]) -> None:
    assert gain(WIDENED, ADMIN) is None
    assert gain(WIDENED, ADMIN, seen=seen) == eased("redaction")


def test_what_was_seen_apart_is_also_compared_together() -> None:
    """The rule asks for a group of one token and the department of another."""
    text = BASE + "roleMappings: [{provider: corp, claim: groups, equals: g-9, roles: [employee]}]\n"
    past = who("admin", groups=frozenset({"g-9"}), provider="corp")
    assert gain(text.replace("redaction: redact", "redaction: flag"), ADMIN, before=text) is None
    assert gain(text.replace("redaction: redact", "redaction: flag"), ADMIN, before=text, seen=(past,)) == eased(
        "redaction"
    )


def test_a_scope_that_gives_a_role_can_be_asked_for_by_whoever_its_provider_knows() -> None:
    text = BASE + "roleMappings: [{provider: corp, claim: scopes, equals: llm, roles: [employee]}]\n"
    eases = text.replace("redaction: redact", "redaction: flag")
    assert gain(eases, ADMIN, before=text) == eased("redaction")
    assert gain(text, ADMIN) == chat()
    assert gain(eases, who("admin", provider="another"), before=text) is None


def test_the_person_behind_a_key_is_what_they_were_seen_as() -> None:
    key = Principal("acme", MACHINES, "a-1", "service", frozenset({"admin"}), owner=("https://idp", "ana"))
    assert gain(WIDENED, key) is None
    assert gain(WIDENED, key, seen=(who("employee"),)) == (
        "This change would ease `redaction` for its owner in `chat` on `acme/small`."
    )


LIMITED = f"""{BASE}limits:
  - {{id: each, scope: {{each: user}}, window: minute, requests: 60, tokens: 1000, sliding: true, onStoreError: deny}}
  - {{id: it, scope: {{department: it}}, window: month, cost_eur: 100}}
"""


@pytest.mark.parametrize(
    ("old", "new", "limit"),
    [
        (LIMITED[len(BASE) :], "", "each"),
        ("requests: 60", "requests: 61", "each"),
        (", tokens: 1000", "", "each"),
        ("window: minute", "window: 30s", "each"),
        (", sliding: true", "", "each"),
        ("onStoreError: deny", "onStoreError: allow", "each"),
        ("{id: each", "{id: other", "each"),
        ("scope: {each: user}, window: minute", "scope: {each: user, role: analyst}, window: minute", "each"),
        ("cost_eur: 100", "cost_eur: 100.01", "it"),
        ("{department: it}", "{department: sales}", "it"),
    ],
)
def test_an_author_does_not_ease_a_limit_of_their_own(old: str, new: str, limit: str) -> None:
    after = LIMITED.replace(old, new)
    assert gain(after, ALSO_EMPLOYEE, before=LIMITED) == eased(f"limits.{limit}")
    assert gain(after, ADMIN, before=LIMITED) is None  # who uses no model is limited in nothing
    assert gain(after, ADMIN, before=LIMITED, seen=(ALSO_EMPLOYEE,)) == eased(f"limits.{limit}")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("requests: 60", "requests: 59"),
        ("requests: 60", "requests: 60, concurrent: 2"),
        ("limits:\n", "limits:\n  - {id: more, scope: {each: user}, window: day, requests: 5}\n"),
        ("window: month, ", "window: month, onStoreError: deny, "),
    ],
)
def test_an_author_may_limit_themselves_further(old: str, new: str) -> None:
    assert gain(LIMITED.replace(old, new), ALSO_EMPLOYEE, before=LIMITED) is None


def test_a_limit_of_others_may_be_eased() -> None:
    assert gain(LIMITED.replace("cost_eur: 100", "cost_eur: 900"), who("admin", "employee"), before=LIMITED) is None


def test_a_binding_that_takes_somebody_out_of_a_limit_is_compared_until_it_expires() -> None:
    """A limit per role is left with the role, and use stays by another one."""
    text = BASE + "  - {id: y, effect: allow, subjects: {any: true}, actions: [chat], models: {groups: [small]}}\n"
    text += (
        'roleBindings: [{id: b, roles: [analyst], principals: ["https://idp#ana"], expires: "2027-01-01T00:00:00Z"}]\n'
    )
    text += "limits: [{id: studies, scope: {each: user, role: analyst}, window: day, tokens: 10}]\n"
    shorter = text.replace("2027-01-01", "2026-06-01")
    assert gain(shorter, ADMIN, before=text) == eased("limits.studies")
