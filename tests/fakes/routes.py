"""Every route that an application really has, for tests that walk all of them."""

from __future__ import annotations

import re
from typing import Any

ANY_ID = "00000000-0000-7000-8000-000000000000"


def flat_routes(routes: Any, prefix: str = "") -> list[tuple[str, str]]:
    """(method, pattern) of everything that can be reached, in the order of the application."""
    flat: list[tuple[str, str]] = []
    for route in routes:
        if hasattr(route, "methods"):
            flat += [(method, prefix + route.path) for method in sorted(route.methods) if method != "HEAD"]
        else:
            # Included routers keep their own lists; a route that this cannot see must fail, not pass.
            assert hasattr(route, "original_router"), f"{route!r} hides its routes from this test"
            flat += flat_routes(route.original_router.routes, prefix + route.include_context.prefix)
    return flat


def filled(pattern: str) -> str:
    """A path of that pattern, with an id that belongs to nothing."""
    pattern = re.sub(r"\{(number|other)\}", "999999", pattern)
    pattern = re.sub(r"\{key_id\}", "AAAAAAAAAAAAAAAAAAAA", pattern)
    return re.sub(r"\{[^}]+\}", ANY_ID, pattern)
