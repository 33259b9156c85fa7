"""What `esclusa doctor` says of spool, clock, descriptors, proxies, metrics and stores that only one replica has."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gateway.cli.checks import check_identity, check_postgres, check_valkey
from gateway.cli.serve import lonely_stores
from gateway.cli.surroundings import check_clock, check_descriptors, check_metrics, check_proxies, check_spool
from gateway.settings import Settings


def settings(**sections: Any) -> Settings:
    return Settings.model_validate(sections)


def spool(folder: Path, **changes: Any) -> Settings:
    return settings(audit={"spool_dir": str(folder), **changes})


def test_a_spool_that_can_be_written_is_fine_and_left_as_it_was(tmp_path: Path) -> None:
    folder = tmp_path / "spool"
    assert check_spool(spool(folder, spool_quota_bytes=1024)).state == "ok"
    assert not folder.exists()
    folder.mkdir()
    assert check_spool(spool(folder, spool_quota_bytes=1024)).state == "ok"
    assert list(folder.iterdir()) == []


def test_a_spool_in_the_way_of_a_file_or_of_permissions_fails(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert check_spool(spool(tmp_path / "file" / "spool")).state == "fail"
    assert check_spool(spool(Path("/proc/nowhere/spool"))).state == "fail"  # for root as well


def test_a_disk_smaller_than_the_quota_is_a_warning(tmp_path: Path) -> None:
    finding = check_spool(spool(tmp_path, spool_quota_bytes=1 << 60))
    assert finding.state == "warn"
    assert "spool_quota_bytes" in finding.wanted


def test_damaged_files_kept_aside_are_named(tmp_path: Path) -> None:
    aside = tmp_path / "quarantine" / "0190a000-0000-7000-8000-000000000000"
    aside.mkdir(parents=True)
    (aside / "0000000001.log").write_bytes(b"damaged")
    finding = check_spool(spool(tmp_path, spool_quota_bytes=1024))
    assert (finding.state, "1 damaged file" in finding.found) == ("warn", True)


def test_the_clock_is_compared_with_postgres(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    configured = settings(store={"database_url": database_url})
    assert check_clock(configured).state == "ok"
    for skew, state in ((5.0, "warn"), (-40.0, "fail")):

        async def skewed(_: Any, skew: float = skew) -> float:
            return skew

        monkeypatch.setattr("gateway.storage.postgres_watch.measure_skew", skewed)
        finding = check_clock(configured)
        assert finding.state == state
        assert f"{abs(skew):.1f} s {'ahead of' if skew > 0 else 'behind'} this machine" in finding.found


def test_descriptors_that_do_not_suffice_are_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.cli.surroundings.resource.getrlimit", lambda _: (64, 1024))
    finding = check_descriptors(settings(upstreams={"up": {"base_url": "http://127.0.0.1:1"}}))
    assert finding.state == "warn"
    assert finding.wanted == "a hard limit of 4444 open files or more"
    monkeypatch.setattr("gateway.cli.surroundings.resource.getrlimit", lambda _: (64, 8192))
    assert check_descriptors(settings()).state == "ok"


@pytest.mark.parametrize(
    ("http", "state"),
    [
        ({}, "ok"),
        ({"trusted_proxies": ["10.0.0.0/8"]}, "ok"),
        ({"trusted_proxies": ["0.0.0.0/0"]}, "warn"),
        ({"trusted_proxies": ["10.0.0.1", "::/0"]}, "warn"),
    ],
)
def test_proxy_settings_are_shown_and_judged(http: dict[str, Any], state: str) -> None:
    finding = check_proxies(settings(http=http))
    assert finding.state == state
    for network in http.get("trusted_proxies", ()):
        assert network in finding.found


def test_a_policy_on_source_addresses_without_a_trusted_proxy_is_a_warning(tmp_path: Path) -> None:
    policy = tmp_path / "policy.yaml"
    policy.write_text("when: {sourceCidr: [10.0.0.0/8]}")
    assert check_proxies(settings(access={"policy_file": str(policy)})).state == "warn"


@pytest.mark.parametrize(
    ("http", "state"),
    [
        ({}, "ok"),
        ({"host": "0.0.0.0"}, "ok"),  # has no say in where metrics listen
        ({"metrics_host": "::1"}, "ok"),
        ({"metrics_host": "0.0.0.0"}, "warn"),
        ({"metrics_host": "0.0.0.0", "metrics_port": None}, "ok"),
    ],
)
def test_metrics_beyond_loopback_are_a_warning(http: dict[str, Any], state: str) -> None:
    assert check_metrics(settings(http=http)).state == state


def test_a_private_store_beside_a_configured_one_is_said() -> None:
    both = {"database_url": "postgresql://h/d", "redis_url": "redis://h"}
    assert lonely_stores(settings(store=both)) == []
    assert lonely_stores(settings()) == []
    (told,) = lonely_stores(settings(store={"database_url": "postgresql://h/d"}))
    assert "each grants the whole of every budget" in told
    (told,) = lonely_stores(settings(store={"redis_url": "redis://h"}))
    assert "private Postgres" in told
    assert check_valkey(settings(store={"database_url": "postgresql://h/d"})).state == "warn"


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("postgresql://u:hunter2@127.0.0.1:1/x", "no connection"),
        ("postgresql://u:hunter2@h/x?sslmode=wrong", "`sslmode=wrong`"),
        ("mysql://u:hunter2@h/x", "`mysql` is not supported"),
    ],
)
def test_a_database_url_that_does_not_work_is_told_without_its_password(url: str, told: str) -> None:
    finding = check_postgres(settings(store={"database_url": url}))
    assert (finding.state, told in finding.found) == ("fail", True)
    assert "hunter2" not in str(finding)


def test_a_wrong_password_is_told_as_that(postgres_url: str) -> None:
    host = postgres_url.split("@", 1)[1]
    finding = check_postgres(settings(store={"database_url": f"postgresql://esclusa:wrong-one@{host}"}))
    assert (finding.state, "password authentication failed" in finding.found) == ("fail", True)


def test_a_provider_that_does_not_answer_is_told_with_its_address() -> None:
    provider = {
        "name": "corp", "issuer": "http://127.0.0.1:1/x", "audiences": ["a"],
        "jwks_url": "http://127.0.0.1:1/keys", "allow_http": True,
    }  # fmt: skip
    finding = check_identity(settings(identity={"providers": [provider]}))
    assert (finding.state, finding.wanted) == ("fail", "HTTP 200 from http://127.0.0.1:1/keys")
    assert "`identity.jwks_proxy`" in finding.fix
