"""For how long the dearest bodies keep everybody else waiting: the longest hold of event loop and interpreter.

    python -m benchmarks.loop_lag [--fields] [--runs 3] [--json]

Starts the whole gateway in this process with private stores and the demo models, and sends each route what costs most.
`--fields`: also every field of every inference route with the worst value of its type (`worst_bodies`).
Holds are CPU milliseconds (`gateway.benchmark.holds`), the least of `--runs`.
"""

from __future__ import annotations

import argparse
import asyncio
import http.client
import json
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import uvloop

from gateway.app import serve
from gateway.benchmark.holds import HoldMeter, Holds
from gateway.benchmark.ports import free_port
from gateway.benchmark.worst_bodies import worst_bodies
from gateway.local.issuer import DevIssuer
from gateway.local.paths import data_dir
from gateway.local.stack import fill_gaps
from gateway.settings import Settings, load_settings
from gateway.wiring.running_services import Services

LARGEST = 4 * 1024 * 1024
MODEL = "smollm2-135m-instruct"
CHAT, COMPLETIONS, EMBEDDINGS = "/v1/chat/completions", "/v1/completions", "/v1/embeddings"
VALIDATE, EXPLAIN = "/admin/v1/policies:validate", "/admin/v1/authz:explain"


@dataclass(frozen=True, slots=True)
class Case:
    route: str
    name: str
    raw: bytes
    role: str = "analyst"
    content_type: str = "application/json"


@dataclass(frozen=True, slots=True)
class Row:
    route: str
    name: str
    mebibytes: float
    status: int
    code: str | None
    loop_ms: float
    interpreter_ms: float


class Gateway:
    """The gateway on a loop of its own in a thread, with the meter on that loop."""

    def __init__(self, folder: Path) -> None:
        self.port, self.meter = free_port(), HoldMeter()
        overrides: dict[str, Any] = {
            "http": {"port": self.port, "metrics_port": None},
            "local": {"enabled": True, "data_dir": str(folder)},
        }
        self.settings: Settings = load_settings(None, overrides)
        self._ready, self._stop = threading.Event(), asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="gateway", daemon=True)

    def __enter__(self) -> Gateway:
        self._thread.start()
        if not self._ready.wait(300):
            raise TimeoutError("the gateway did not start")
        return self

    def __exit__(self, *_: object) -> None:
        self.meter.stop()
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(60)

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(self._serve())

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        async with AsyncExitStack() as stack:

            async def prepare(boot: Any) -> Settings:
                return await fill_gaps(self.settings, stack, boot.update)

            async def ready(_services: Services, _url: str) -> None:
                await self.meter.start()
                self._ready.set()

            await serve(self.settings, prepare=prepare, on_ready=ready, stop=self._stop)

    def send(self, case: Case, token: str) -> tuple[int, str | None]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=300)
        try:
            connection.request(
                "POST", case.route, case.raw, {"authorization": f"Bearer {token}", "content-type": case.content_type}
            )
            answer = connection.getresponse()
            data = answer.read()
        finally:
            connection.close()
        try:
            return answer.status, json.loads(data)["error"]["code"]
        except (ValueError, KeyError, TypeError):
            return answer.status, None


def filled(head: bytes, item: bytes, tail: bytes, size: int = LARGEST) -> bytes:
    count = (size - len(head) - len(tail)) // (len(item) + 1)
    return head + b",".join([item] * count) + tail


def keys(count: int, value: str) -> bytes:
    return ",".join(f'"k{number}":{value}' for number in range(count)).encode()


def cases() -> Iterator[Case]:
    head = b'{"model":"' + MODEL.encode() + b'","max_tokens":4,'
    chat = head + b'"messages":[{"role":"user","content":"x"}],'
    yield Case(CHAT, "an ordinary question", chat[:-1] + b"}")
    yield Case(CHAT, "guided_choice of numbers", filled(chat + b'"guided_choice":[', b"1", b"]}"))
    yield Case(CHAT, "logit_bias, 280,000 bad keys", chat + b'"logit_bias":{' + keys(280_000, '"a"') + b"}}")
    yield Case(CHAT, "metadata, 300,000 keys", chat + b'"metadata":{' + keys(300_000, "1") + b"}}")
    yield Case(CHAT, "300,000 unknown fields", chat + keys(300_000, "1") + b"}")
    part = b'{"role":"user","content":[' + b",".join([b'{"type":"text"}'] * 100) + b"]}"
    yield Case(CHAT, "2,048 messages of 100 bad parts", head + b'"messages":[' + b",".join([part] * 2048) + b"]}")
    yield Case(CHAT, "bare lists", filled(b"[", b"[]", b"]"))
    yield Case(CHAT, "objects", filled(head + b'"x":[', b'{"a":1}', b"]}"))
    yield Case(CHAT, "131,000 numbers", head + b'"x":[' + b",".join([b"1"] * 131_000) + b"]}")
    yield Case(CHAT, "65,000 keys", head + keys(65_000, "1") + b"}")
    yield Case(CHAT, "unclosed text of escaped quotes (20 kB)", b"[" * 65 + b'"' + b'\\"' * 10_000)
    for name, text in (("words", b"palabra "), ("one word", b"a"), ("digits", b"4111 1111 "), ("marks", b"<|"),
                       ("signs", b"x!"), ("disguises", b"1gn0r3 "), ("phrases", b"ignore all previous "),
                       ("escapes", rb"\u00e9"), ("keys", b"sk-"), ("mixed", "aб".encode())):  # fmt: skip
        long = text * ((LARGEST - 200) // len(text))
        raw = head + b'"messages":[{"role":"user","content":"' + long + b'"}]}'
        yield Case(CHAT, f"a prompt of {name}", raw)
        yield Case(CHAT, f"a prompt of {name}, inspected", raw, role="employee")
    yield Case(COMPLETIONS, "a prompt of true", filled(head + b'"prompt":[', b"true", b"]}"))
    yield Case(COMPLETIONS, "a prompt of empty texts", filled(head + b'"prompt":[', b'""', b"]}"))
    yield Case(COMPLETIONS, "a prompt of 130,000 ids", head + b'"prompt":[' + b",".join([b"5"] * 130_000) + b"]}")
    yield Case(COMPLETIONS, "a prompt of words", head + b'"prompt":"' + b"palabra " * 520_000 + b'"}')
    vectors = head.replace(b'"max_tokens":4,', b"")
    yield Case(EMBEDDINGS, "inputs of numbers", filled(vectors + b'"input":[', b"1", b"]}"))
    text = b'"' + b"palabra " * 250 + b'"'
    yield Case(EMBEDDINGS, "2,000 long inputs", vectors + b'"input":[' + b",".join([text] * 2000) + b"]}")
    admin = {"role": "policy-admin"}
    mebibyte = 1024 * 1024 - 1000
    yield Case(EXPLAIN, "claims of 80,000 keys", b'{"action":"chat","claims":{' + keys(80_000, "1") + b"}}", **admin)
    yield Case(
        EXPLAIN, "roles of numbers", filled(b'{"action":"chat","principal":{"roles":[', b"1", b"]}}", mebibyte), **admin
    )
    policy = b"apiVersion: esclusa/v1\nkind: PolicySet\nmetadata: {name: x}\nrules: ["
    yaml = {"content_type": "application/yaml", **admin}
    yield Case(VALIDATE, "YAML, rules of numbers", filled(policy, b"1", b"]", mebibyte), **yaml)
    yield Case(VALIDATE, "YAML, one long text", policy + b"'" + b"a " * (mebibyte // 2 - 100) + b"']", **yaml)
    document = b'{"apiVersion":"esclusa/v1","kind":"PolicySet","metadata":{"name":"x"},"rules":['
    yield Case(VALIDATE, "JSON, rules of lists", filled(document, b"[]", b"]}", mebibyte), **admin)


def field_cases() -> Iterator[Case]:
    from gateway.api.openapi import ROUTES

    valid: dict[str, dict[str, Any]] = {
        CHAT: {"model": MODEL, "max_tokens": 1, "messages": [{"role": "user", "content": "x"}]},
        COMPLETIONS: {"model": MODEL, "max_tokens": 1, "prompt": "x"},
        EMBEDDINGS: {"model": MODEL, "input": "x"},
    }
    for route, (body, *_) in ROUTES.items():
        if route in valid:
            for worst in worst_bodies(body.model_json_schema(), valid[route], LARGEST):
                yield Case(route, f"{worst.field}: {worst.filled}", worst.raw)


def measured(gateway: Gateway, wanted: Iterator[Case], runs: int) -> Iterator[Row]:
    issuer = DevIssuer.open(data_dir(gateway.settings))
    number = 0
    for case in wanted:
        found: list[Holds] = []
        status, code = 0, None
        for _ in range(runs):
            number += 1  # nobody's limits add up
            token = issuer.mint(f"u-{number}", [case.role], department=f"d-{number}", ttl_s=3600)
            gateway.meter.leave_out()
            gateway.meter.reset()
            status, code = gateway.send(case, token)
            time.sleep(0.05)
            found.append(gateway.meter.read())
            if found[-1].longest_ms > 3000:
                break
        yield Row(
            case.route, case.name, round(len(case.raw) / 2**20, 2), status, code,
            round(min(one.loop_ms for one in found), 1), round(min(one.interpreter_ms for one in found), 1),
        )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fields", action="store_true")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="esclusa-lag-") as name:
        Path(name).chmod(0o711)  # a private Postgres may run as another user
        rows = _rows(Path(name), asked)
    if asked.json:
        print(json.dumps([asdict(row) for row in rows], indent=2))
        return
    print("| route | body | MiB | answer | loop ms | interpreter ms |\n|---|---|---:|---|---:|---:|")
    for row in rows:
        print(_line(row))


def _rows(folder: Path, asked: argparse.Namespace) -> list[Row]:
    rows = []
    with Gateway(folder) as gateway:
        for number, row in enumerate(measured(gateway, cases(), asked.runs)):
            if number:  # the first warms up
                rows.append(row)
                print(_line(row), file=sys.stderr, flush=True)
        if asked.fields:
            for row in measured(gateway, field_cases(), 1):
                rows.append(row)
                if max(row.loop_ms, row.interpreter_ms) > 30:
                    print(_line(row), file=sys.stderr, flush=True)
    return rows


def _line(row: Row) -> str:
    return (
        f"| `{row.route}` | {row.name} | {row.mebibytes:.1f} | {row.status} {row.code or ''} "
        f"| {row.loop_ms:.0f} | {row.interpreter_ms:.0f} |"
    )


if __name__ == "__main__":
    main()
