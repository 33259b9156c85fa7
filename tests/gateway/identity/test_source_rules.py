"""Habits that led others into trouble must not appear in the product's source (B13, B30, I4)."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

GATEWAY = Path(__file__).parents[3] / "gateway"
SOURCES = sorted(GATEWAY.rglob("*.py"))
FORBIDDEN = ["verify_signature=False", '"verify_signature": False', "get_unverified", "PyJWKClient", "jwt.decode("]


@pytest.mark.parametrize("text", FORBIDDEN)
def test_no_module_reads_a_token_unverified(text: str) -> None:
    assert [path.name for path in SOURCES if text in path.read_text(encoding="utf-8")] == []


def test_secrets_of_this_domain_are_compared_in_constant_time() -> None:
    compared = []
    for path in (GATEWAY / "identity").glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Compare) and any(isinstance(op, ast.Eq | ast.NotEq) for op in node.ops):
                names = {getattr(side, "attr", getattr(side, "id", "")) for side in [node.left, *node.comparators]}
                if names & {"digest", "tag", "secret", "signature"}:
                    compared.append(f"{path.name}:{node.lineno}")
    assert compared == []


def test_only_the_key_source_makes_outgoing_requests() -> None:
    users = {path.name for path in (GATEWAY / "identity").glob("*.py") if "httpx2" in path.read_text(encoding="utf-8")}
    assert users <= {"key_source.py", "service.py"}


def test_network_client_follows_no_redirect_and_no_environment() -> None:
    source = (GATEWAY / "identity/key_source.py").read_text(encoding="utf-8")
    assert "follow_redirects=False" in source
    assert "trust_env=False" in source
