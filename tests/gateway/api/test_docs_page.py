"""The reference page: off by default; where it is on, complete without any other server."""

from __future__ import annotations

import re
from typing import Any

import httpx2
import pytest

from gateway.api import docs_page
from gateway.errors import ConfigError
from gateway.http_settings import HttpSettings
from tests.fakes.stage import Stage


@pytest.fixture(scope="module")
def stage_overrides() -> dict[str, Any]:
    return {"http": {"port": 0, "metrics_port": None, "shutdown_grace_s": 5.0, "docs": True}}


def test_the_page_and_all_that_it_loads_come_from_here(stage: Stage) -> None:
    page = httpx2.get(f"{stage.url}/docs")
    assert page.status_code == 200
    assert "default-src 'self'" in page.headers["content-security-policy"]
    loaded = re.findall(r'(?:src|href)="([^"]+)"', page.text)
    assert len(loaded) >= 3
    for address in loaded:
        assert address.startswith("/docs/"), address
        assert httpx2.get(stage.url + address).status_code == 200, address


def test_the_description_needs_no_credential_beside_it(stage: Stage) -> None:
    assert "/v1/chat/completions" in httpx2.get(f"{stage.url}/openapi.json").json()["paths"]


@pytest.mark.parametrize("name", ["redoc.standalone.js", "..%2f__init__.py", "x"])
def test_nothing_else_of_the_package_is_served(stage: Stage, name: str) -> None:
    assert httpx2.get(f"{stage.url}/docs/{name}").status_code == 404


def test_all_else_still_needs_a_credential(stage: Stage) -> None:
    assert httpx2.get(f"{stage.url}/v1/models").status_code == 401


def test_the_page_is_off_by_default() -> None:
    assert not HttpSettings().docs


def test_without_the_assets_the_start_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(docs_page, "find_spec", lambda name: None)
    with pytest.raises(ConfigError) as refused:
        docs_page.routes("Esclusa", "/openapi.json")
    assert "esclusa[docs]" in str(refused.value.hint)
