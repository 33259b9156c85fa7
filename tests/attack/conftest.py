"""What `make attack` runs. Every test in this folder is marked `attack`; those through a proxy need it installed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fakes.reverse_proxies import PROXIES, in_front_of, installed
from tests.fakes.stage import (  # noqa: F401
    _plain_upstream,
    issuer,
    stage,
    stage_database_url,
    stage_overrides,
    upstream_thread,
)

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.attack)


@pytest.fixture(scope="module", params=PROXIES)
def proxy_port(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """A port on which a reverse proxy passes everything on to the stage's gateway; once for each proxy."""
    if installed(request.param) is None:
        pytest.skip(f"{request.param} is not installed (Debian: apt-get install nginx-light haproxy)")
    gateway_url = request.getfixturevalue("stage").url
    with in_front_of(request.param, gateway_url, tmp_path_factory.mktemp(request.param)) as port:
        yield port
