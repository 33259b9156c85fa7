"""What ships beside the code: the compose file, the example settings, the README's promises."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import time
import tomllib
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import redis
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from gateway.identity.providers import build_providers
from gateway.local.child import free_port
from gateway.local.models import DEMO_MODELS
from gateway.local.valkey import _binary
from gateway.routing.catalog import catalog_from
from gateway.settings import Settings, load_settings
from gateway.storage.dsn import parse_database_url
from gateway.storage.valkey import parse_address

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
SECRETS = {"ESCLUSA_DB_PASSWORD": "x" * 24, "ESCLUSA_VALKEY_PASSWORD": "y" * 24}


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    return dict(yaml.safe_load((ROOT / "docker-compose.yml").read_text()))


def has_compose() -> bool:
    docker = shutil.which("docker")
    if docker is None:
        return False
    return subprocess.run([docker, "compose", "version"], capture_output=True, check=False).returncode == 0


def test_compose_runs_gateway_postgres_and_valkey_with_health_checks(compose: dict[str, Any]) -> None:
    assert set(compose["services"]) == {"gateway", "models", "postgres", "valkey"}
    lasting = {name: service for name, service in compose["services"].items() if name != "models"}
    assert all("healthcheck" in service for service in lasting.values())
    waits = {name: wait["condition"] for name, wait in compose["services"]["gateway"]["depends_on"].items()}
    assert waits == {
        "models": "service_completed_successfully",
        "postgres": "service_healthy",
        "valkey": "service_healthy",
    }


def test_compose_publishes_no_store_and_carries_no_secret(compose: dict[str, Any]) -> None:
    assert "ports" not in compose["services"]["postgres"]
    assert "ports" not in compose["services"]["valkey"]
    text = (ROOT / "docker-compose.yml").read_text()
    assert text.count("${ESCLUSA_DB_PASSWORD:?") == 2
    assert "${ESCLUSA_VALKEY_PASSWORD:?" in text


def test_compose_names_files_that_exist(compose: dict[str, Any]) -> None:
    build = compose["services"]["gateway"]["build"]
    assert (ROOT / build["context"] / build["dockerfile"]).is_file()
    assert (ROOT / "deploy" / "esclusa.example.yaml").is_file()


@pytest.mark.skipif(not has_compose(), reason="the docker client with its compose plugin is not installed here")
def test_compose_is_accepted_by_the_docker_client() -> None:
    ended = subprocess.run(
        ["docker", "compose", "config", "--quiet"],
        cwd=ROOT,
        env={**os.environ, **SECRETS},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr


def test_the_image_copies_only_what_exists_and_runs_as_nobody_special() -> None:
    text = (ROOT / "deploy" / "Dockerfile").read_text()
    for line in re.findall(r"^COPY (?!--from)(.+)$", text, re.MULTILINE):
        for source in line.split()[:-1]:
            assert (ROOT / source).exists(), source
    assert re.search(r"^USER (?!root)", text, re.MULTILINE)


def in_compose(compose: dict[str, Any], service: str) -> dict[str, str]:
    """The environment that compose passes to a service, with nothing set but the two passwords."""
    environment = compose["services"][service]["environment"]
    fill = lambda found: SECRETS.get(found[1], "")  # noqa: E731
    return {name: re.sub(r"\$\{(\w+)(?::[?-][^}]*)?\}", fill, str(value)) for name, value in environment.items()}


def test_the_example_settings_start_with_what_compose_passes(compose: dict[str, Any]) -> None:
    environment = in_compose(compose, "gateway")
    settings = load_settings(ROOT / "deploy" / "esclusa.example.yaml", environment=environment)
    assert build_providers(settings.identity.providers[0])[0].name == "keycloak"
    assert settings.store.database_url is not None
    assert parse_database_url(settings.store.database_url.get_secret_value()).host == "postgres"
    assert settings.store.redis_url is not None
    assert parse_address(settings.store.redis_url.get_secret_value()).host == "valkey"
    cards = catalog_from(settings).all()
    assert [card.id for card in cards if not card.virtual] == ["smollm2-135m-instruct"]
    assert settings.http.metrics_host == "127.0.0.1"


def test_the_commented_parts_of_the_example_can_be_used() -> None:
    text = (ROOT / "deploy" / "esclusa.example.yaml").read_text()
    upstream = re.sub(
        r"^(\s*)# (?=\s*(- id|tier|upstream|context|labels|vllm|base_url|api_key))", r"\1", text, flags=re.M
    )
    assert upstream != text
    tree = yaml.safe_load(upstream)
    assert tree["upstreams"]["vllm"]["api_key"] == "env.VLLM_API_KEY"
    assert [model["id"] for model in tree["models"]] == ["smollm2-135m-instruct", "large-upstream"]
    Settings.model_validate(tree)


def test_the_model_of_the_example_is_fetched_to_where_it_is_looked_for(compose: dict[str, Any]) -> None:
    service = compose["services"]["models"]
    assert service["command"][:2] == ["models", "fetch"]
    settings = load_settings(ROOT / "deploy" / "esclusa.example.yaml", environment={})
    for model in settings.models:
        asset = next(asset for asset in DEMO_MODELS if asset.id == model.id)
        assert model.id in service["command"]
        assert model.path == f"/var/cache/esclusa/models/{asset.filename}"
    assert set(service["volumes"]) <= set(compose["services"]["gateway"]["volumes"])
    assert "XDG_CACHE_HOME=/var/cache " in (ROOT / "deploy" / "Dockerfile").read_text()


def test_valkey_gets_its_password_on_no_command_line(compose: dict[str, Any], tmp_path: Path) -> None:
    """The command of the compose file, run with a real Valkey."""
    password, port = SECRETS["ESCLUSA_VALKEY_PASSWORD"], free_port()
    names = tmp_path / "bin"
    names.mkdir()
    (names / "docker-entrypoint.sh").write_text('#!/bin/sh\nexec "$@"\n')
    (names / "docker-entrypoint.sh").chmod(0o755)
    (names / "valkey-server").symlink_to(_binary())
    shell, option, script = compose["services"]["valkey"]["command"]
    script = script.replace("$$", "$").replace("appendonly yes", f"appendonly yes\nport {port}\nbind 127.0.0.1")
    environment = {"PATH": f"{names}:{os.environ['PATH']}", **in_compose(compose, "valkey")}
    server = subprocess.Popen([shell, option, script], env=environment, cwd=tmp_path, stdout=subprocess.DEVNULL)
    try:
        client = redis.Redis(port=port, password=password, socket_timeout=2)
        for _ in range(500):
            try:
                assert client.ping()
                break
            except redis.ConnectionError:
                time.sleep(0.02)
        assert client.config_get("maxmemory-policy") == {"maxmemory-policy": "noeviction"}
        with pytest.raises(redis.AuthenticationError):
            redis.Redis(port=port, password="guessed").ping()
        client.close()
        arguments = Path(f"/proc/{server.pid}/cmdline").read_bytes()
        assert b"valkey-server" in arguments  # the shell has become the server: signals reach it
        assert password.encode() not in arguments
    finally:
        server.terminate()
        server.wait(10)


def test_no_service_names_a_password_in_its_command_or_health_check(compose: dict[str, Any]) -> None:
    for service in compose["services"].values():
        words = " ".join([*service.get("command", ()), *service.get("healthcheck", {}).get("test", ())])
        assert not re.search(r"(--requirepass|-a|--pass\w*|-W)\s+[\"$]", words)


def locked(name: str) -> dict[str, str]:
    """Package -> version, of a lock file whose every entry has at least one hash."""
    text = (ROOT / "deploy" / name).read_text()
    entries = re.findall(
        r"^([A-Za-z0-9][^\n]*?) \\\n((?:    --hash=sha256:[0-9a-f]{64}(?: \\)?\n)+)", text, re.MULTILINE
    )
    assert len(entries) == len(re.findall(r"^[A-Za-z0-9]", text, re.MULTILINE)), "an entry without a hash"
    return {Requirement(spec).name: next(iter(Requirement(spec).specifier)).version for spec, _ in entries}


def test_the_image_installs_nothing_but_what_is_locked_by_hash() -> None:
    text = (ROOT / "deploy" / "Dockerfile").read_text()
    assert "extra-index-url" not in text
    installs = [line for line in re.split(r"&&|^RUN ", text.replace("\\\n", " "), flags=re.M) if "pip install" in line]
    assert len(installs) == 4
    assert all("--require-hashes" in line or "--no-deps --no-index" in line for line in installs)
    for line in installs:
        if "--index-url" in line:
            assert "--no-deps" in line
            assert "torch-cpu.lock" in line


def test_the_lock_holds_every_dependency_in_a_version_that_is_asked_for() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [Requirement(text) for text in project["dependencies"] + project["optional-dependencies"]["engine"]]
    have = {**locked("requirements.lock"), **locked("torch-cpu.lock")}
    for requirement in wanted:
        if requirement.marker is not None and not requirement.marker.evaluate():
            continue
        version = have[canonicalize_name(requirement.name)]
        assert requirement.specifier.contains(version.partition("+")[0], prereleases=True), requirement
    assert "hatchling" in locked("build.lock")


def test_the_lock_holds_what_the_locked_packages_need() -> None:
    """As their own metadata tells it, of those that are installed here in the version of the lock."""
    have = {**locked("requirements.lock"), **locked("torch-cpu.lock")}
    missing = []
    for name, version in have.items():
        try:
            installed = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            continue
        if installed.version.partition("+")[0] != version.partition("+")[0]:
            continue
        for text in installed.requires or ():
            needed = Requirement(text)
            if needed.marker is None or needed.marker.evaluate({"extra": ""}):
                missing += [(name, text)] if canonicalize_name(needed.name) not in have else []
    assert missing == []


def test_an_engine_on_a_cpu_installs_no_triton() -> None:
    """Of about 0.9 GB, which nothing on a CPU imports."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = {
        name: {Requirement(text).name for text in texts} for name, texts in project["optional-dependencies"].items()
    }
    assert {name for name, packages in extras.items() if "triton" in packages} == {"gpu", "dev"}
    assert "triton" not in {Requirement(text).name for text in project["dependencies"]} | set(
        locked("requirements.lock")
    )


def test_locks_name_no_index() -> None:
    for file in (ROOT / "deploy").glob("*.lock"):
        assert not re.search(r"https?:|file:|--(extra-)?index-url|--find-links|--trusted-host", file.read_text()), file


def test_the_readme_is_short_and_its_links_lead_somewhere() -> None:
    assert len(README.splitlines()) <= 200
    links = re.findall(r"\]\((?!https?://)([^)#]+)", README)
    assert links
    assert not [link for link in links if not (ROOT / link).exists()]


def test_the_readme_names_commands_that_the_makefile_and_ci_have() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for target in re.findall(r"make (\w+)", README):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target
    ci = (ROOT / ".ci" / "run").read_text()
    assert "make test" in ci
    assert "make lint" in ci


@pytest.mark.parametrize("name", ["LICENSE", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md", "constraints.txt"])
def test_a_project_file_is_there(name: str) -> None:
    assert (ROOT / name).stat().st_size > 100 or name == "constraints.txt"
