"""What ships beside the code: the compose file, the example settings, the README's promises."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from gateway.settings import load_settings

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
    assert set(compose["services"]) == {"gateway", "postgres", "valkey"}
    assert all("healthcheck" in service for service in compose["services"].values())
    assert all(wait["condition"] == "service_healthy" for wait in compose["services"]["gateway"]["depends_on"].values())


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


def test_the_example_settings_load() -> None:
    settings = load_settings(ROOT / "deploy" / "esclusa.example.yaml", environment={"VLLM_API_KEY": "k" * 20})
    assert settings.identity.providers[0].name == "keycloak"
    assert {model.id for model in settings.models} == {"smollm2-135m-instruct", "large-upstream"}


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
