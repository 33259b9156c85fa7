"""One line of JSON for each feature of a client, for the runner. Standard library only: it runs beside the client."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from importlib.metadata import version

URL, KEY = os.environ["ESCLUSA_URL"], os.environ["ESCLUSA_KEY"]
CHAT, EMBEDDING = os.environ["ESCLUSA_CHAT_MODEL"], os.environ["ESCLUSA_EMBEDDING_MODEL"]
BASE = f"{URL}/v1"


def run(client: str, package: str, features: dict[str, Callable[[], object]]) -> None:
    """Each feature by itself: one that fails says how, and the others still run."""
    for name, feature in features.items():
        try:
            feature()
        except BaseException as error:  # noqa: BLE001 - whatever a client raises is its verdict
            ok, note = False, f"{type(error).__name__}: {error}"[:600]
        else:
            ok, note = True, ""
        line = {"client": client, "version": version(package), "feature": name, "ok": ok, "note": note}
        sys.stdout.write(json.dumps(line) + "\n")
        sys.stdout.flush()
