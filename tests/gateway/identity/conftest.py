"""Fixtures of the identity tests: a request context, an issuer with one key of each family, a service over it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from gateway.flow.context import RequestContext, SystemClock, SystemIds
from gateway.flow.values import Credential, Principal
from gateway.identity.service import IdentityService
from tests.fakes.issuer import TestIssuer

Authenticate = Callable[[str], Awaitable[Principal]]


@pytest.fixture
def context() -> RequestContext:
    clock = SystemClock()
    return RequestContext(SystemIds().uuid7(), clock.now(), clock.monotonic_s(), "/v1/chat/completions")


@pytest.fixture
def issuer() -> TestIssuer:
    return TestIssuer.with_keys(k1="RS256", e1="ES256", p1="PS256", d1="EdDSA")


@pytest.fixture
def service(issuer: TestIssuer) -> IdentityService:
    """Keys come from the issuer in-process; nothing is on a network."""
    return IdentityService(issuer.settings(), clock=SystemClock(), key_sources={"corp": issuer})


@pytest.fixture
def authenticate(service: IdentityService, context: RequestContext) -> Authenticate:
    async def call(token: str) -> Principal:
        return await service.authenticate(Credential("authorization", token), context)

    return call


async def eventually(true: Callable[[], bool], *, within_s: float) -> bool:
    """Whether `true()` becomes true in time; looks every 10 ms."""
    for _ in range(int(within_s * 100)):
        if true():
            return True
        await asyncio.sleep(0.01)
    return true()
