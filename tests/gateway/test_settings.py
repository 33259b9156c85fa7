"""Where settings come from, which source wins, and what a wrong one is told."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gateway.errors import ConfigError
from gateway.settings import load_settings


def write(tmp_path: Path, text: str) -> Path:
    file = tmp_path / "esclusa.yaml"
    file.write_text(text, encoding="utf-8")
    return file


def wrong(file: Path | None, environment: dict[str, str] | None = None) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        load_settings(file, environment=environment or {})
    return caught.value


def test_overrides_win_over_the_environment_and_it_over_the_file(tmp_path: Path) -> None:
    file = write(tmp_path, "http: {host: 10.0.0.1, port: 1, metrics_port: 7}\n")
    found = load_settings(
        file, {"http": {"port": 3}}, environment={"ESCLUSA_HTTP__PORT": "2", "ESCLUSA_HTTP__HOST": "::1"}
    )
    assert (found.http.port, found.http.host, found.http.metrics_port) == (3, "::1", 7)


@pytest.mark.parametrize(("overrides", "environment"), [({"http": {"port": 0}}, {}), ({}, {"ESCLUSA_HTTP__PORT": "0"})])
def test_a_wrong_value_in_the_file_is_told_even_when_it_is_overridden(
    tmp_path: Path, overrides: dict[str, object], environment: dict[str, str]
) -> None:
    file = write(tmp_path, "http:\n  port: ninety\n")
    with pytest.raises(ConfigError) as caught:
        load_settings(file, overrides, environment=environment)
    assert (caught.value.file, caught.value.line) == (str(file), 2)
    assert "http.port" in caught.value.message
    assert "ninety" not in str(caught.value)


def test_a_reference_in_the_file_may_be_overridden(tmp_path: Path) -> None:
    file = write(tmp_path, "http: {port: env.THE_PORT}\n")
    assert load_settings(file, {"http": {"port": 5}}, environment={}).http.port == 5


def test_trusted_proxies_are_addresses_and_networks(tmp_path: Path) -> None:
    names = '["127.0.0.1", "10.0.0.0/8", "2001:db8::/32", "::ffff:192.0.2.0/120"]'
    found = load_settings(write(tmp_path, f"http: {{trusted_proxies: {names}}}\n"), environment={})
    shown = ["127.0.0.1/32", "10.0.0.0/8", "2001:db8::/32", "192.0.2.0/24"]
    assert [str(network) for network in found.http.trusted_proxies] == shown
    assert json.loads(found.model_dump_json())["http"]["trusted_proxies"] == shown


@pytest.mark.parametrize("name", ["10.0.0.1/8", "proxy.internal", "10.0.0.1:443", "10.0.0.0/33", "*", "", "10"])
def test_a_proxy_that_cannot_be_read_ends_the_start(tmp_path: Path, name: str) -> None:
    error = wrong(write(tmp_path, f"http:\n  trusted_proxies:\n    - 127.0.0.1\n    - '{name}'\n"))
    assert (error.line, "http.trusted_proxies.1" in error.message) == (4, True)
    assert "10.0.0.0/8 or 2001:db8::/32" in error.message
    assert wrong(None, {"ESCLUSA_HTTP__TRUSTED_PROXIES": f"['{name}']"}).file == "ESCLUSA_HTTP__TRUSTED_PROXIES"


def test_the_names_that_operators_know_are_read() -> None:
    found = load_settings(environment={"DATABASE_URL": "postgresql://db/x", "REDIS_URL": "redis://cache"})
    assert found.store.database_url is not None
    assert found.store.database_url.get_secret_value() == "postgresql://db/x"
    assert found.store.redis_url is not None


def test_the_file_may_be_named_by_the_environment(tmp_path: Path) -> None:
    file = write(tmp_path, "http: {port: 4242}\n")
    assert load_settings(environment={"ESCLUSA_CONFIG": str(file)}).http.port == 4242


def test_a_secret_stays_out_of_the_file(tmp_path: Path) -> None:
    file = write(tmp_path, "upstreams: {up: {base_url: 'http://x/v1', api_key: os.environ/UP_KEY}}\n")
    found = load_settings(file, environment={"UP_KEY": "s3cret"})
    key = found.upstreams["up"].api_key
    assert key is not None
    assert key.get_secret_value() == "s3cret"
    assert "s3cret" not in repr(found)


def test_a_variable_that_is_not_set_is_named(tmp_path: Path) -> None:
    file = write(tmp_path, "upstreams: {up: {base_url: 'http://x/v1', api_key: env.UP_KEY}}\n")
    assert "UP_KEY" in str(wrong(file))


def test_an_unknown_key_is_told_with_its_line_and_the_nearest_name(tmp_path: Path) -> None:
    error = wrong(write(tmp_path, "http:\n  port: 1\n  prot: 2\n"))
    assert str(error).startswith(f"{tmp_path / 'esclusa.yaml'}:3:3: unknown key `http.prot`")
    assert error.hint == "did you mean `port`?"


def test_an_unknown_key_inside_a_list_is_told_as_well(tmp_path: Path) -> None:
    error = wrong(write(tmp_path, "models:\n  - id: a\n  - id: b\n    teir: small\n"))
    assert error.line == 4
    assert error.hint == "did you mean `tier`?"


def test_a_wrong_value_is_told_with_its_line_and_not_repeated(tmp_path: Path) -> None:
    error = wrong(write(tmp_path, "http:\n  port: hunter2\n"))
    assert (error.line, error.column) == (2, 3)
    assert "hunter2" not in str(error)


def test_a_wrong_variable_is_named_instead_of_a_line() -> None:
    error = wrong(None, {"ESCLUSA_HTTP__PORT": "many"})
    assert str(error).startswith("ESCLUSA_HTTP__PORT: `http.port`")


def test_an_unknown_variable_is_refused() -> None:
    assert "http.prot" in str(wrong(None, {"ESCLUSA_HTTP__PROT": "1"}))


def test_variables_of_other_tools_are_left_alone() -> None:
    assert load_settings(environment={"ESCLUSA_DB_PASSWORD": "x"}).http.port == 8080


@pytest.mark.parametrize(
    ("text", "line"),
    [("http: {port: 1\n", 2), ("http:\n\tport: 1\n", 2), ("- a\n- b\n", 1), ("http: {}\nhttp: {}\n", 2)],
)
def test_a_file_that_cannot_be_read_is_told_with_its_line(tmp_path: Path, text: str, line: int) -> None:
    assert wrong(write(tmp_path, text)).line == line


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    assert "nothing.yaml" in str(wrong(tmp_path / "nothing.yaml"))


def test_an_empty_file_means_defaults(tmp_path: Path) -> None:
    assert load_settings(write(tmp_path, ""), environment={}).http.host == "127.0.0.1"


def test_a_list_may_come_from_the_environment() -> None:
    found = load_settings(environment={"ESCLUSA_HTTP__ALLOWED_HOSTS": "[a.example, b.example]"})
    assert found.http.allowed_hosts == ("a.example", "b.example")
