"""What a policy text may look like, and how a mistake in it is reported."""

from __future__ import annotations

import textwrap
from typing import Any

import pytest

from gateway.access.document.parsing import MAX_PROBLEMS, parse_policy
from gateway.access.document.problems import PolicyInvalid
from tests.fakes.policies import HEAD, policy

RULE = "rules:\n  - {id: a, effect: deny, subjects: {any: true}}\n"


def problem_in(text: str, syntax: str = "yaml") -> str:
    with pytest.raises(PolicyInvalid) as raised:
        parse_policy(text, name="p.yaml", syntax=syntax)  # type: ignore[arg-type]
    return str(raised.value)


def body(text: str) -> str:
    return HEAD + textwrap.dedent(text)


@pytest.mark.parametrize(
    ("text", "report"),
    [
        (HEAD + RULE.replace("effect", "efect"), "p.yaml:5:13: `rules[0].efect`: unknown field `efect`"),
        (HEAD + RULE.replace("deny", "refuse"), "p.yaml:5:21: `rules[0].effect`: found `refuse`; expected `allow`"),
        (HEAD + RULE.replace("id: a", "id: 5"), "p.yaml:5:10: `rules[0].id`: found `5`; expected text (put it in"),
        (HEAD + "rules: {}", "p.yaml:4:8: `rules`: found a mapping; expected a list"),
        (HEAD + "rules:", "p.yaml:4:7: `rules`: found nothing; expected a list"),
        (HEAD, "p.yaml:1:1: `rules` is missing"),
        (HEAD.replace("v1", "v2") + RULE, "p.yaml:1:13: `apiVersion`: found `esclusa/v2`; expected `esclusa/v1`"),
        ("apiVersion: &a x\nkind: *a", "p.yaml:1:13: anchors and aliases are not allowed"),
        ("a: !!python/object:os.system x", "p.yaml:1:4: the tag"),
        ("a: 1\nb: 2\na: 3", "p.yaml:3:1: duplicate key `a`"),
        ("a: {b: 1, b: 2}", "p.yaml:1:11: duplicate key `b`"),
        ("a: 1\n--- \nb: 2", "p.yaml:2:1: a second document starts here"),
        ("? [a]\n: 1", "p.yaml:1:3: a key must be plain text"),
        ("a: [1", "not YAML: did not find expected"),
        ("", "the document is empty"),
        ("[" * 40 + "]" * 40, "nested deeper than 16 levels"),
        ('a: "x\\u200by"', "p.yaml:1:4: the invisible character U+200B is not allowed"),
        ('a: "x\\0"', "p.yaml:1:4: the invisible character U+0000 is not allowed"),
        ("a\u202e: 1", "p.yaml:1:1: the invisible character U+202E is not allowed"),
    ],
)
def test_a_mistake_is_reported_with_file_line_column_and_what_was_expected(text: str, report: str) -> None:
    assert report in problem_in(text)


def test_a_misspelt_word_gets_the_nearest_valid_one_as_a_hint() -> None:
    text = body("rules:\n  - {id: a, effect: deny, subjects: {any: true}, actions: [polcy.write]}")
    assert "did you mean `policy.write`?" in problem_in(text)


def test_every_mistake_is_kept_not_only_the_first() -> None:
    text = body("rules:\n  - {id: a, effect: x, subjects: {any: true}, color: red}\n  - {id: '!', effect: deny}")
    with pytest.raises(PolicyInvalid) as raised:
        parse_policy(text, name="p.yaml")
    assert {problem.pointer for problem in raised.value.problems} == {
        "rules[0].effect",
        "rules[0].color",
        "rules[1].id",
        "rules[1]",
    }


@pytest.mark.parametrize(
    ("text", "report"),
    [
        ("{", "p.yaml:1:2: not JSON"),
        ('{"a": 1, "a": 2}', "duplicate key `a`"),
        ('{"a": NaN}', "`NaN` is not a JSON number"),
        ("[" * 100_000, "not JSON that can be read"),
        ('{"a": "\\u0000"}', "U+0000"),
        ('{"a": "\\ud800"}', "U+D800"),
    ],
)
def test_json_is_read_as_strictly(text: str, report: str) -> None:
    assert report in problem_in(text, "json")


def test_bytes_that_are_not_utf8_are_refused() -> None:
    with pytest.raises(PolicyInvalid, match="byte 3 is not UTF-8"):
        parse_policy(b"a: \xff", name="p.yaml")


def test_more_than_a_mebibyte_is_refused() -> None:
    assert "larger than 1 MiB" in problem_in("#" * (1024 * 1024 + 1))


def test_a_bare_no_and_a_bare_time_stay_text() -> None:
    snapshot = policy(
        """
        roles: {"no": {}}
        rules:
          - id: a
            effect: allow
            subjects: {roles: [no]}
            actions: [chat]
            models: {any: true}
            when: {time: {tz: UTC, from: 07:00, to: 20:00}}
        """
    )
    assert snapshot.document.rules[0].when is not None


@pytest.mark.parametrize(
    ("field", "report"),
    [
        ("when: {time: {tz: America/Atlantis}}", "expected an IANA time zone"),
        ("when: {time: {tz: UTC, from: '9:00'}}", "expected text of the form"),
        ("when: {time: {tz: UTC, from: '09:00', to: '09:00'}}", "leave no time"),
        ("when: {time: {tz: UTC, days: [mo]}}", "expected a day or a range"),
        ("when: {sourceCidr: [10.0.0.1/8]}", "expected a network"),
        ("when: {sourceCidr: []}", "expected at least 1"),
        ("when: {purpose: {in: [a], notIn: [b]}}", "expected either `in` or `notIn`"),
        ("when: {dataClass: {}}", "expected `min` or `max`"),
        ("when: {dataClass: {max: secret}}", "expected `public`, `internal`, `confidential`, `restricted`"),
        ("models: {}", "expected `ids`, `groups`, `labels` or `any: true`"),
        ("models: {any: true, ids: [a]}", "expected either `ids` or `groups`, or `any: true`"),
        ("models: {ids: ['a*b']}", "expected `*` only as a whole segment or at the end of one"),
        ("models: {ids: ['*-large']}", "expected `*` only as a whole segment or at the end of one"),
        ("models: {ids: ['a//b']}", "expected `*` only as a whole segment or at the end of one"),
        ("models: {ids: ['cafe\u0301']}", "not in Unicode normal form NFC"),
    ],
)
def test_each_field_says_what_it_expects(field: str, report: str) -> None:
    text = body(f"rules:\n  - id: a\n    effect: deny\n    subjects: {{any: true}}\n    {field}\n")
    assert report in problem_in(text)


@pytest.mark.parametrize(
    ("subjects", "report"),
    [
        ("{}", "expected `roles`, `principals`, `departments`, `tenants`, or `any: true`"),
        ("{any: true, roles: [a]}", "expected either `roles` or `principals`, or `any: true`"),
        ("{types: [user]}", "expected `roles`, `principals`, `departments`, `tenants`, or `any: true`"),
        ("{any: true, types: []}", "expected at least 1"),
        ("{principals: [ana]}", "expected `<issuer>#<subject>`"),
    ],
)
def test_a_rule_says_whom_it_is_for(subjects: str, report: str) -> None:
    assert report in problem_in(body(f"rules:\n  - {{id: a, effect: deny, subjects: {subjects}}}"))


@pytest.mark.parametrize(
    ("limit", "report"),
    [
        ("{id: l, scope: {each: user}}", "limits nothing"),
        ("{id: l, scope: {}, requests: 1}", "expected `each`, or some of `user`, `department`, `role`, `tenant`"),
        ("{id: l, scope: {each: purpose}, requests: 1}", "found `purpose`; expected `user`, `key`"),
        ("{id: l, scope: {each: user, user: a#b}, requests: 1}", "are both written"),
        ("{id: l, scope: {each: user}, window: hour, requests: 1}", "expected `minute`, `day`, `month` or seconds"),
        ("{id: l, scope: {each: user}, requests: -1}", "greater than or equal to 0"),
        ("{id: l, scope: {each: user}, budget: 5}", "unknown field `budget`"),
        ("{id: l, scope: {each: user}, cost: 5, cost_eur: 5}", "cannot stand beside"),
        ("{id: l, scope: {each: user}, requests: 1, onExceed: warn}", "expected `deny`"),
        ("{id: l, scope: {each: user}, requests: 1, onExceed: warn}", "found `warn`"),
    ],
)
def test_a_limit_says_what_it_counts(limit: str, report: str) -> None:
    assert report in problem_in(body(f"{RULE}limits:\n  - {limit}"))


def test_the_hash_is_of_the_meaning_not_of_the_layout() -> None:
    first = parse_policy(HEAD + RULE, name="a")
    second = parse_policy("# comment\n" + RULE + HEAD + "settings: {hideModels: false}\n", name="b")
    assert first.sha256() == second.sha256()


def test_the_hash_changes_with_the_meaning() -> None:
    first = parse_policy(HEAD + RULE, name="a")
    assert first.sha256() != parse_policy(HEAD + RULE + "settings: {hideModels: true}\n", name="b").sha256()


def test_a_document_survives_a_round_trip_through_json() -> None:
    import json

    document = parse_policy(HEAD + RULE + "modelGroups: {g: ['acme/*']}\n", name="a")
    again = parse_policy(json.dumps(document.to_data()), name="b", syntax="json")
    assert again == document


@pytest.mark.parametrize("syntax", ["yaml", "json"])
@pytest.mark.parametrize("item", ["1", "[]", "{}", '{"id":1}'])
def test_a_document_of_nothing_but_mistakes_costs_no_more_than_a_right_one(syntax: Any, item: str) -> None:
    head = '{"apiVersion":"esclusa/v1","kind":"PolicySet","metadata":{"name":"x"},"rules":['
    count = (1024 * 1024 - 200) // (len(item) + 1)
    for many in (count, 20_000, 4_000):
        with pytest.raises(PolicyInvalid) as caught:
            parse_policy(head + ",".join([item] * min(many, count)) + "]}", name="x", syntax=syntax)
        assert len(caught.value.problems) <= MAX_PROBLEMS


def test_a_list_of_wrong_names_is_told_by_its_first() -> None:
    text = (
        "{apiVersion: esclusa/v1, kind: PolicySet, metadata: {name: x}, rules: "
        "[{id: a, effect: allow, actions: [chat], models: {any: true}, subjects: {roles: [1, 2, 3]}}]}"
    )
    with pytest.raises(PolicyInvalid) as caught:
        parse_policy(text, name="x")
    assert [problem.path for problem in caught.value.problems] == [("rules", 0, "subjects", "roles", 0)]


@pytest.mark.parametrize(
    ("limit", "hint"),
    [
        ("{id: l, scope: {each: user}, cost_usd: 5}", "write `cost` with `currency: USD`"),
        ("{id: l, scope: {each: user, purposes: a}, requests: 1}", "did you mean `purpose`?"),
        ("{id: l, scope: {each: user, project: a}, requests: 1}", None),
    ],
)
def test_a_hint_is_given_only_where_it_helps(limit: str, hint: str | None) -> None:
    with pytest.raises(PolicyInvalid) as raised:
        parse_policy(body(f"{RULE}limits:\n  - {limit}"), name="t.yaml")
    assert raised.value.hint == hint


def test_a_department_alone_stands_for_everybody_in_it() -> None:
    document = parse_policy(body("rules: [{id: a, effect: deny, subjects: {departments: [finance]}}]"), name="t.yaml")
    assert document.rules[0].subjects.everybody
