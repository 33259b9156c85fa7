"""A process that writes audit records as fast as it can and says on stdout which ones were acknowledged.

Started by the kill -9 tests as `python tests/fakes/audit_writer.py <database url> <spool folder> <mode>`; a line
`i <request id>` is printed after an intent returned, `c <request id>` after its completion returned.
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

from gateway.audit.service import AuditService
from gateway.flow.context import SystemClock, SystemIds
from gateway.settings import AuditSettings
from gateway.storage.postgres import make_engine
from tests.fakes.exchanges import admitted, finished


async def main(url: str, spool: str, mode: str) -> None:
    service = AuditService(
        make_engine(url),
        settings=AuditSettings.model_validate({"mode": mode}),
        spool_dir=Path(spool),
        clock=SystemClock(),
        ids=SystemIds(),
        node_id="victim",
        gateway_version="0.1.0",
    )
    await service.start()

    async def requests() -> None:
        while True:
            exchange = admitted()
            await service.intent(exchange)
            os.write(1, f"i {exchange.request_id}\n".encode())
            await asyncio.sleep(0)
            await service.completion(finished(exchange))
            os.write(1, f"c {exchange.request_id}\n".encode())

    await asyncio.gather(*(requests() for _ in range(8)))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:4]))
