"""Small policies from a few lines of YAML, principals and contexts, for tests of the access domain."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from gateway.access.decision.compiled_policy import Snapshot
from gateway.access.decision.compiler import compile_policy
from gateway.access.decision.evaluator import evaluate
from gateway.access.document.model import PolicySet
from gateway.access.document.parsing import parse_source
from gateway.access.document.source import read_source
from gateway.flow.context import Client, RequestContext
from gateway.flow.values import Decision, ModelCard, Principal

HEAD = "apiVersion: esclusa/v1\nkind: PolicySet\nmetadata: {name: t}\n"
SMALL = ModelCard("acme/small", "b", labels={"hosting": "internal", "locality": "home"})
LARGE = ModelCard("acme/large", "b", labels={"hosting": "external"})
AUTO = ModelCard("auto", "r", virtual=True)
CARDS = (SMALL, LARGE, AUTO)
NOON = datetime(2026, 1, 5, 12, 0, tzinfo=UTC)
"""A Monday."""


def policy(body: str, catalog: Sequence[ModelCard] = CARDS, known: frozenset[str] | None = None) -> Snapshot:
    """A compiled policy from everything below its head. Raises `PolicyInvalid`."""
    source = read_source(HEAD + textwrap.dedent(body), name="t.yaml")
    document = parse_source(source, PolicySet)
    return compile_policy(document, version=7, catalog=catalog, known_models=known, source=source)


def who(*roles: str, **more: Any) -> Principal:
    values: dict[str, Any] = {"tenant": "acme", "issuer": "https://idp", "subject": "ana", "kind": "user"}
    return Principal(roles=frozenset(roles), **(values | more))


def when(at: datetime = NOON, *, ip: str | None = None, **more: Any) -> RequestContext:
    context = RequestContext(UUID(int=1), at, 0.0, "/v1/chat/completions", client=Client(ip=ip))
    return replace(context, **more)


def decide(
    snapshot: Snapshot,
    principal: Principal,
    model: ModelCard | None = SMALL,
    action: str = "chat",
    context: RequestContext | None = None,
) -> Decision:
    return evaluate(snapshot, principal, action, model, context or when())
