"""Two gateways on one Postgres and one Valkey: what an administrator takes away on one is gone on both within 5 s.

`pytest --log-cli-level=INFO` prints the measured times.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx2
import pytest
import redis
from pydantic import SecretStr

from gateway.local.issuer import DevIssuer
from tests.fakes.hang_guard import HANG_S
from tests.fakes.running_gateway import RunningGateway
from tests.fakes.stage import POLICY, UpstreamThread, stage_settings

pytestmark = pytest.mark.timeout(180)
_log = logging.getLogger("measured")
PATH = "/v1/chat/completions"
ASK: dict[str, Any] = {"model": "maxi", "messages": [{"role": "user", "content": "Hola"}], "max_tokens": 4}


class Replicas:
    """`first` is where administrators call; `second` is where answers run."""

    def __init__(self, first: str, second: str, issuer: DevIssuer) -> None:
        self.first, self.second, self.issuer = first, second, issuer

    def bearer(self, sub: str, *roles: str, tenant: str = "acme") -> dict[str, str]:
        token = self.issuer.mint(sub, roles or ("analyst",), department="finance", tenant=tenant)
        return {"authorization": f"Bearer {token}"}

    def admin(self, method: str, path: str, body: Any = None, *, tenant: str = "acme", **headers: str) -> Any:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        answer = httpx2.request(
            method,
            f"{self.first}/admin/v1{path}",
            json=body,
            headers=self.bearer("u-sec", "security", "analyst", tenant=tenant) | named,
        )
        assert answer.is_success, answer.text
        return answer

    def account_key(self, name: str) -> tuple[dict[str, Any], dict[str, Any]]:
        account = self.admin("POST", "/service-accounts", {"name": name, "roles": ["analyst"]}).json()
        return account, self.admin("POST", f"/service-accounts/{account['id']}/keys", {"name": "ci"}).json()

    def status(self, credential: dict[str, str], url: str | None = None) -> int:
        return httpx2.post((url or self.second) + PATH, json=ASK, headers=credential, timeout=30).status_code

    def until(self, credential: dict[str, str], status: int) -> None:
        """Wait until the second replica answers with `status`."""
        deadline = time.monotonic() + HANG_S
        while self.status(credential) != status:
            assert time.monotonic() < deadline, f"never {status}"
            time.sleep(0.02)


@pytest.fixture(scope="module")
def replicas(
    upstream_thread: UpstreamThread,
    issuer: DevIssuer,
    stage_database_url: str,
    valkey_url: str,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Replicas]:
    with redis.Redis.from_url(valkey_url) as client:
        client.flushall()
    settings = [
        stage_settings(
            database_url=stage_database_url,
            valkey_url=valkey_url,
            issuer=issuer,
            upstream_url=upstream_thread.script.url,
            spool_dir=tmp_path_factory.mktemp("replica") / "spool",
            overrides={"identity": {"api_key_pepper": SecretStr("p" * 40)}},
        )
        for _ in range(2)
    ]
    with RunningGateway(settings[0]) as first, RunningGateway(settings[1]) as second:
        yield Replicas(first.url, second.url, issuer)


@pytest.fixture
def _slowly(upstream_thread: UpstreamThread) -> None:
    script = upstream_thread.script
    script.mode, script.delay_s, script.words = "slow", 0.02, tuple(f"w{number} " for number in range(1000))


class Running(threading.Thread):
    """One long answer; `stopped_at` and `stop` say when and why it ended."""

    def __init__(self, url: str, credential: dict[str, str]) -> None:
        super().__init__(daemon=True)
        self._url, self._credential = url, credential
        self.going = threading.Event()
        self.stop: str | None = None
        self.stopped_at = 0.0

    def run(self) -> None:
        body = {**ASK, "stream": True, "max_tokens": 1500}
        with httpx2.stream("POST", self._url + PATH, json=body, headers=self._credential, timeout=60) as answer:
            for line in answer.iter_lines():
                if '"content":"w' in line:
                    self.going.set()
                if '"finish_reason":"' in line:
                    last = json.loads(line.removeprefix("data: "))
                    self.stop, self.stopped_at = last.get("x_esclusa", {}).get("stop"), time.monotonic()


def measure(
    replicas: Replicas, name: str, credential: dict[str, str], take_away: Callable[[], object], *, status: int = 401
) -> Running:
    """Start an answer on the second replica, take something away on the first: the answer is stopped and the next
    request refused. The times are logged (`-o log_cli_level=INFO`), not judged: they depend on the machine's load."""
    running = Running(replicas.second, credential)
    running.start()
    assert running.going.wait(10)
    started = time.monotonic()
    take_away()
    running.join(HANG_S)
    assert not running.is_alive(), "the answer goes on"
    replicas.until(credential, status)
    refused, stopped = time.monotonic() - started, running.stopped_at - started
    _log.info("%s: running answer stopped after %.0f ms, next refused by %.0f ms", name, stopped * 1e3, refused * 1e3)
    return running


@pytest.mark.usefixtures("_slowly")
def test_a_revoked_key_stops_on_the_other_replica(replicas: Replicas) -> None:
    account, key = replicas.account_key("revoked-key")
    credential = {"authorization": f"Bearer {key['key']}"}
    path = f"/service-accounts/{account['id']}/keys/{key['id']}"
    assert measure(replicas, "key", credential, lambda: replicas.admin("DELETE", path)).stop == "revoked"


@pytest.mark.usefixtures("_slowly")
def test_a_disabled_account_stops_on_the_other_replica(replicas: Replicas) -> None:
    account, key = replicas.account_key("disabled-account")
    credential = {"x-api-key": key["key"]}

    def disable() -> None:
        replicas.admin("PATCH", f"/service-accounts/{account['id']}", {"disabled": True}, if_match='"v1"')

    assert measure(replicas, "account", credential, disable).stop == "revoked"


@pytest.mark.usefixtures("_slowly")
def test_a_revoked_subject_stops_on_the_other_replica(replicas: Replicas) -> None:
    body = {"kind": "subject", "issuer": replicas.issuer.issuer, "subject": "u-leaver", "reason": "left the company"}
    running = measure(
        replicas, "subject", replicas.bearer("u-leaver"), lambda: replicas.admin("POST", "/revocations", body)
    )
    assert running.stop == "revoked"


@pytest.mark.usefixtures("_slowly")
@pytest.mark.parametrize("whose", ["subject", "issuer"])
def test_tokens_issued_before_a_moment_stop_on_the_other_replica(replicas: Replicas, whose: str) -> None:
    tenant = f"leaky-{whose}"
    body: dict[str, Any] = {"kind": "issued_before", "issuer": replicas.issuer.issuer, "reason": "a laptop was stolen"}
    if whose == "subject":
        body["subject"] = "u-stolen"
    running = measure(
        replicas,
        f"issued before, {whose}",
        replicas.bearer("u-stolen", tenant=tenant),
        lambda: replicas.admin("POST", "/revocations", body, tenant=tenant),
    )
    assert running.stop == "revoked"
    time.sleep(1.0)
    assert replicas.status(replicas.bearer("u-stolen", tenant=tenant) | {"x-purpose": "x"}) == 200


@pytest.mark.usefixtures("_slowly")
@pytest.mark.parametrize("change", [{"models": ["mini"]}, {"roles": []}], ids=["models", "roles"])
def test_a_narrowed_account_stops_on_the_other_replica(replicas: Replicas, change: dict[str, Any]) -> None:
    account, key = replicas.account_key(f"narrowed-{min(change)}")

    def narrow() -> None:
        replicas.admin("PATCH", f"/service-accounts/{account['id']}", change, if_match='"v1"')

    running = measure(replicas, f"narrowed {min(change)}", {"api-key": key["key"]}, narrow, status=403)
    assert running.stop == "policy"


@pytest.mark.usefixtures("_slowly")
def test_a_policy_that_takes_the_model_away_stops_what_runs_on_the_other_replica(replicas: Replicas) -> None:
    author = replicas.bearer("u-policy", "policy-admin")
    url = f"{replicas.first}/admin/v1/policies/current"
    etag = httpx2.get(url, headers=author).headers["etag"]
    text = POLICY.read_text().replace("  all: [mini, maxi, embed, tiny, long]", "  all: [mini, embed, tiny, long]")
    changed = {**author, "if-match": etag, "content-type": "application/yaml", "x-change-reason": "maxi is retired"}

    def put() -> None:
        answer = httpx2.put(url, content=text, headers=changed)
        assert answer.status_code == 200, answer.text

    assert measure(replicas, "policy", replicas.bearer("u-runs"), put, status=403).stop == "policy"


def test_a_limit_is_one_for_both_replicas(replicas: Replicas) -> None:
    capped = replicas.bearer("u-shared", "capped")
    ask = {**ASK, "model": "mini"}
    answers = [
        httpx2.post(url + PATH, json=ask, headers=capped, timeout=30).status_code
        for url in (replicas.first, replicas.second, replicas.first, replicas.second)
    ]
    assert answers == [200, 200, 429, 429]
