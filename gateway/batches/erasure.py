"""Erasure of a person's files and batches, whatever state they are in. One transaction.

A line that runs meanwhile finds its lease gone and writes nothing; its node stops it within seconds.
"""

from __future__ import annotations

from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncEngine

from gateway.batches.tables import batch, stored_file
from gateway.batches.values import Owner


@dataclass(frozen=True, slots=True)
class ErasedWork:
    files: int
    batches: int


async def erase_work(engine: AsyncEngine, owner: Owner) -> ErasedWork:
    async with engine.begin() as connection:
        counts = []
        for table in (batch, stored_file):
            own = [table.c[name] == value for name, value in owner.columns.items()]
            counts.append((await connection.execute(sa.delete(table).where(*own))).rowcount)
    return ErasedWork(files=counts[1], batches=counts[0])
