"""`gateway/wiring/` is the only room that builds services; everybody else is given them."""

from __future__ import annotations

import ast
import re
from pathlib import Path

GATEWAY = Path(__file__).parents[2] / "gateway"
BUILDERS = ("wiring/", "local/", "benchmark/")
"""Who may build: the room itself, stand-ins for a laptop, and measurements (`bench.py` of a domain as well)."""
SERVICE = re.compile(r"[A-Z]\w*(Service|Store|Repository|Reader|Editor|Backend|Guard|Inspector|List|Pipeline)\Z")
PARTS = {"AnswerGuard", "BodyReader", "BootReader", "LocalStore", "SegmentReader"}
"""What an object makes for itself, and nobody else holds."""
MODULES = {path.relative_to(GATEWAY).as_posix(): path for path in sorted(GATEWAY.rglob("*.py"))}
TREES = {name: ast.parse(path.read_text(encoding="utf-8")) for name, path in MODULES.items()}
SERVICES = {"SystemClock", "SystemIds"} | {
    node.name
    for tree in TREES.values()
    for node in tree.body
    if isinstance(node, ast.ClassDef) and SERVICE.match(node.name) and node.name not in PARTS
}


def calls(tree: ast.Module) -> set[str]:
    return {node.func.id for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)}


def test_nothing_but_the_wiring_builds_a_service() -> None:
    outside = {name: tree for name, tree in TREES.items() if not name.startswith(BUILDERS) and "/bench.py" not in name}
    assert {name: found for name, tree in outside.items() if (found := calls(tree) & SERVICES)} == {}


def test_the_wiring_builds_what_the_gateway_is_made_of() -> None:
    built = set().union(*(calls(tree) for name, tree in TREES.items() if name.startswith("wiring/")))
    assert {"AccountService", "AuditReader", "IdentityRepository", "PolicyEditor", "ValkeyStore", "SystemIds"} <= built
