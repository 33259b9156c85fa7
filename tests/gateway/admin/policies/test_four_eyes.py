"""Four eyes are two people: who may be the second person of a change, over the admin API and a real database."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import httpx2
import pytest

from gateway.access.history.repository import PolicyRepository
from gateway.access.history.versions import AlreadyDecided, author_of
from gateway.flow.values import Principal
from gateway.identity.api_keys import ISSUER as MACHINES
from gateway.storage.postgres import make_engine
from tests.fakes.policy_stage import CALLERS, ISSUER, SEED, PolicyStage, person, policy_stage

TEXT = SEED.read_text(encoding="utf-8")
CHANGED = TEXT.replace("maxOutputTokens: 2048", "maxOutputTokens: 7")


def machine(name: str, owner: str, *roles: str, owner_person: str | None = None) -> Principal:
    return Principal(
        tenant="acme",
        issuer=MACHINES,
        subject=name,
        kind="service",
        roles=frozenset(roles),
        owner=(ISSUER, owner),
        owner_person=owner_person,
    )


SOLO = person("solo", "platform-admin", person="e-17")
PEOPLE = {
    **CALLERS,
    "solo": SOLO,
    "solo elsewhere": replace(SOLO, issuer="https://other-idp.test", subject="s.olo"),
    "solo without person": replace(SOLO, issuer="https://other-idp.test", subject="s.olo", person=None),
    "key of solo": machine("k-1", "solo", "platform-admin", owner_person="e-17"),
    "key of plato": machine("k-2", "plato", "platform-admin"),
    "application": person("batch", "platform-admin", kind="service"),
    "writing key of solo": machine("k-3", "solo", "deployer", owner_person="e-17"),
}


@pytest.fixture
async def stage(database_url: str) -> AsyncIterator[PolicyStage]:
    async with policy_stage(database_url, four_eyes=True, callers=PEOPLE) as stage:
        yield stage


def error(response: httpx2.Response) -> tuple[int, str]:
    return response.status_code, response.json()["error"]["code"]


async def propose(stage: PolicyStage, text: str = CHANGED, token: str = "solo") -> str:
    response = await stage.put(text, token=token)
    assert response.status_code == 202, response.text
    return str(response.json()["proposal"]["id"])


async def decide(stage: PolicyStage, proposal: str, token: str, verb: str = "approve") -> httpx2.Response:
    return await stage.call("POST", f"/policies/proposals/{proposal}:{verb}", token)


@pytest.mark.parametrize("token", ["key of solo", "key of plato", "application"])
async def test_no_machine_is_a_second_person(stage: PolicyStage, token: str) -> None:
    response = await decide(stage, await propose(stage), token)
    assert error(response) == (403, "not_permitted")
    assert "person who signed in" in response.json()["error"]["message"]
    assert stage.service.version == 1


@pytest.mark.parametrize("token", ["solo", "solo elsewhere"])
async def test_one_human_is_not_two_people_even_at_two_issuers(stage: PolicyStage, token: str) -> None:
    assert error(await decide(stage, await propose(stage), token)) == (403, "second_person_required")
    assert stage.service.version == 1


async def test_an_issuer_that_states_no_person_cannot_be_compared(stage: PolicyStage) -> None:
    """The documented limit: where a provider has no `person_claim`, its people are other people."""
    assert (await decide(stage, await propose(stage), "solo without person")).status_code == 200


async def test_a_rule_cannot_make_a_machine_a_second_person(stage: PolicyStage) -> None:
    rule = (
        "  - {id: robots, effect: allow, subjects: {roles: [operator], types: [service]}, actions: [policy.approve]}\n"
    )
    robots = await propose(stage, TEXT.replace("\nlimits:\n", f"\n{rule}\nlimits:\n"))
    assert (await decide(stage, robots, "plato")).status_code == 200
    response = await decide(stage, await propose(stage), "application")
    assert error(response) == (403, "not_permitted")


DEPLOYER = TEXT.replace(
    "  operator:\n", "  deployer:\n    description: Writes the policy from a repository.\n  operator:\n"
)
FOR_MACHINES = (
    "  - {id: deploy, effect: allow, subjects: {roles: [deployer]%s}, actions: [policy.read, policy.write]}\n"
)


async def test_a_machine_writes_the_policy_only_by_a_rule_for_machines(stage: PolicyStage) -> None:
    assert error(await stage.put(CHANGED, token="key of solo")) == (403, "not_permitted")
    rule = FOR_MACHINES % ", types: [service]"
    text = DEPLOYER.replace("\nlimits:\n", f"\n{rule}\nlimits:\n")
    assert (await decide(stage, await propose(stage, text), "plato")).status_code == 200
    waiting = await propose(stage, text.replace("maxOutputTokens: 2048", "maxOutputTokens: 7"), "writing key of solo")
    assert error(await decide(stage, waiting, "solo")) == (403, "second_person_required")
    assert error(await decide(stage, waiting, "solo elsewhere")) == (403, "second_person_required")
    assert (await decide(stage, waiting, "plato")).status_code == 200


async def test_a_rule_that_names_no_types_gives_a_machine_no_policy(stage: PolicyStage) -> None:
    text = DEPLOYER.replace("\nlimits:\n", f"\n{FOR_MACHINES % ''}\nlimits:\n")
    assert (await decide(stage, await propose(stage, text), "plato")).status_code == 200
    assert error(await stage.put(CHANGED, token="writing key of solo")) == (403, "not_permitted")


BINDING = '\nroleBindings:\n  - {id: b, roles: [platform-admin], principals: ["https://idp.test#pablo"]%s}\n'


async def test_a_right_given_after_the_proposal_approves_nothing(stage: PolicyStage) -> None:
    """Giving it makes a newer version, and the older proposal no longer fits."""
    first = await propose(stage)
    assert error(await decide(stage, first, "pablo")) == (403, "not_permitted")
    giving = await propose(stage, TEXT + BINDING % "")
    assert (await decide(stage, giving, "plato")).status_code == 200
    assert error(await decide(stage, first, "pablo")) == (412, "etag_mismatch")
    assert stage.service.version == 2


async def test_the_right_to_approve_is_that_of_the_version_in_the_database(
    stage: PolicyStage, database_url: str
) -> None:
    """A replica that has not heard of the newest version yet must not let a right pass that was taken away."""
    expiring = TEXT + BINDING % ', expires: "%s"' % (datetime.now(UTC) + timedelta(hours=1)).isoformat()
    assert (await decide(stage, await propose(stage, expiring), "plato")).status_code == 200
    waiting = await propose(stage, expiring.replace("maxOutputTokens: 2048", "maxOutputTokens: 7"))
    engine = make_engine(database_url)
    elsewhere = PolicyRepository(engine)
    current = await elsewhere.current()
    assert current is not None
    await elsewhere.append(replace(current.content, source=TEXT, sha256="00"), expected=2)
    await engine.dispose()
    # 412 by the version in the database, or 403 where the notification of it came first.
    assert error(await decide(stage, waiting, "pablo")) in {(412, "etag_mismatch"), (403, "not_permitted")}
    assert stage.service.version <= 3


async def test_an_emergency_grant_that_was_used_is_on_record(stage: PolicyStage) -> None:
    soon = (datetime.now(UTC) + timedelta(hours=1)).isoformat()
    text = TEXT + BINDING % f', expires: "{soon}", breakGlass: true'
    assert (await decide(stage, await propose(stage, text), "plato")).status_code == 200
    waiting = await propose(stage, text.replace("maxOutputTokens: 2048", "maxOutputTokens: 7"))
    assert (await decide(stage, waiting, "pablo")).status_code == 200
    assert (stage.events[-1].diff or {})["break_glass"] == ["b"]


async def test_a_proposal_rejected_meanwhile_does_not_come_into_force(stage: PolicyStage, database_url: str) -> None:
    proposal = await propose(stage)
    engine = make_engine(database_url)
    repository = PolicyRepository(engine)
    waiting = (await repository.proposals(state="pending", limit=1))[0]
    await decide(stage, proposal, "plato", "reject")
    approved = replace(waiting.content, approver=author_of(PEOPLE["plato"]))
    with pytest.raises(AlreadyDecided):
        await repository.append(approved, expected=1, proposal=waiting.id)
    assert await repository.current_number() == 1
    await engine.dispose()


async def test_the_author_of_a_proposal_may_withdraw_it(stage: PolicyStage) -> None:
    assert (await decide(stage, await propose(stage), "solo", "reject")).json()["state"] == "rejected"


async def test_what_the_author_of_a_proposal_gains_is_said_and_on_record(stage: PolicyStage) -> None:
    rule = "  - {id: all, effect: allow, subjects: {any: true}, actions: [chat], models: {groups: [small]}}\n"
    text = TEXT.replace("\nlimits:\n", f"\n{rule}\nlimits:\n").partition("\ntests:")[0]
    response = await stage.put(text, token="solo")
    assert [one["kind"] for one in response.json()["warnings"]] == ["own_gain"]
    assert (stage.events[-1].diff or {})["author_gains"] == [response.json()["warnings"][0]["message"]]


async def test_what_the_author_gains_by_a_wider_token_is_said_too(database_url: str) -> None:
    async def seen(author: Principal) -> list[Principal]:
        return [replace(author, roles=frozenset({"employee"}))]

    eased = TEXT.partition("\nlimits:")[0]
    async with policy_stage(database_url, four_eyes=True, callers=PEOPLE, seen=seen) as stage:
        response = await stage.put(eased, token="solo")
    assert response.status_code == 202
    ((kind, message),) = [(one["kind"], one["message"]) for one in response.json()["warnings"]]
    assert kind == "own_gain"
    assert "`limits.user-day` for you" in message
    async with policy_stage(database_url, callers=PEOPLE, seen=seen) as stage:
        assert error(await stage.put(eased, token="solo")) == (403, "cannot_grant_beyond_own_rights")
