"""What the audit costs: records a second by group commit, processor time a record, and what the disk alone takes.

    python -m benchmarks.audit [--folder DIR] [--requests N] [--json]

Writes an intent and a completion for each request, through the real spool on the real disk; Postgres is left away, so
that the figures are those of the path a request waits for. Pin it to one core (`taskset -c 0`) to compare with a
gateway that has one.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import sys
import tempfile
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from gateway.audit.service import AuditService
from gateway.flow.context import Client, RequestContext, SystemClock, SystemIds
from gateway.flow.stages import Concluded, Reserved
from gateway.flow.values import (
    ChatRequest,
    Decision,
    Effect,
    Estimate,
    GenerationParams,
    Inspection,
    Message,
    ModelCard,
    Outcome,
    Principal,
    Reservation,
    RoutePlan,
    Usage,
)
from gateway.settings import AuditSettings
from gateway.storage.postgres import make_engine

IDS = SystemIds()
CARD = ModelCard(id="small", backend="local")
CALLER = Principal(
    tenant="acme",
    issuer="https://idp.acme.example",
    subject="u-1042",
    roles=frozenset({"analyst"}),
    department="ventas",
)
DECISION = Decision(Effect.ALLOW, "analysts may use it", "r-7", 3, "ab" * 32)
REQUEST = ChatRequest(
    "auto", (Message.of_text("user", "hola"),), params=GenerationParams(max_tokens=64, temperature=0.7)
)


def exchange() -> Reserved:
    client = Client(ip="10.0.0.7", user_agent="openai-python/2.0")
    return Reserved(
        context=RequestContext(IDS.uuid7(), datetime.now(UTC), 0.0, "/v1/chat/completions", client=client),
        request=REQUEST,
        principal=CALLER,
        asked=DECISION,
        decision=DECISION,
        plan=RoutePlan("auto", (CARD,), "short question"),
        served=CARD,
        prompt_digest=b"p" * 32,
        inspection=Inspection(),
        findings=(),
        fallbacks=(),
        left=None,
        estimate=Estimate(26, 64),
        reservation=Reservation("r", 90, 12, 64, datetime.now(UTC)),
    )


def done(reserved: Reserved) -> Concluded:
    return Concluded(
        stage=reserved,
        outcome=Outcome.OK,
        status=200,
        claim=reserved.reservation,
        usage=Usage(26, 12, 16),
        finish_reason="stop",
        response_digest=b"r" * 32,
    )


def quantile(sorted_values: list[float], share: float) -> float:
    return sorted_values[min(len(sorted_values) - 1, int(len(sorted_values) * share))]


def disk(folder: Path, records: int, rounds: int = 100) -> dict[str, Any]:
    """One append of so many records and one `fdatasync`, in milliseconds."""
    path = folder / "probe"
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    times: list[float] = []
    for _ in range(rounds):
        began = time.perf_counter()
        os.write(descriptor, b"x" * 2200 * records)
        os.fdatasync(descriptor)
        times.append((time.perf_counter() - began) * 1e3)
    os.close(descriptor)
    path.unlink()
    times.sort()
    return {"records": records, "p50_ms": round(quantile(times, 0.5), 3), "p99_ms": round(quantile(times, 0.99), 3)}


async def measure(folder: Path, mode: str, connections: int, requests: int) -> dict[str, Any]:
    engine = make_engine("postgresql://nobody:x@127.0.0.1:1/none")
    service = AuditService(
        engine,
        settings=AuditSettings.model_validate({"mode": mode}),
        spool_dir=folder / f"{mode}-{connections}",
        clock=SystemClock(),
        ids=IDS,
        node_id="benchmark",
        gateway_version="0",
    )
    await service.start()
    work: Iterator[Reserved] = iter([exchange() for _ in range(requests)])
    waits: list[float] = []

    async def connection() -> None:
        for one in work:
            began = time.perf_counter()
            await service.intent(one)
            waits.append(time.perf_counter() - began)
            await asyncio.sleep(0)
            await service.completion(done(one))

    wall, cpu = time.perf_counter(), time.process_time()
    await asyncio.gather(*(connection() for _ in range(connections)))
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    await service.close()
    await engine.dispose()
    waits.sort()
    return {
        "mode": mode,
        "connections": connections,
        "records_per_s": round(2 * requests / wall),
        "cpu_us_per_record": round(cpu / requests / 2 * 1e6, 1),
        "intent_p50_ms": round(quantile(waits, 0.5) * 1e3, 3),
        "intent_p99_ms": round(quantile(waits, 0.99) * 1e3, 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument(
        "--folder", type=Path, default=None, help="on the disk to be measured; default the temporary one"
    )
    parser.add_argument("--requests", type=int, default=4000)
    parser.add_argument("--json", action="store_true")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=chosen.folder, prefix="esclusa-bench-") as scratch:
        folder = Path(scratch)
        report: dict[str, Any] = {
            "machine": {
                "platform": platform.platform(),
                "python": platform.python_version(),
                "cores": len(os.sched_getaffinity(0)),
                "load": [round(value, 2) for value in os.getloadavg()],
            },
            "disk": [disk(folder, records) for records in (1, 64, 256)],
            "audit": [
                asyncio.run(measure(folder, mode, connections, chosen.requests))
                for mode in ("strict", "standard", "fast")
                for connections in (1, 16, 64)
            ],
        }
    if chosen.json:
        print(json.dumps(report, indent=2))
        return
    print(f"{report['machine']}", file=sys.stderr)
    for row in [*report["disk"], *report["audit"]]:
        print("  ".join(f"{name}={value}" for name, value in row.items()))


if __name__ == "__main__":
    main()
