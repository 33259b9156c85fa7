"""The stores an operator did not configure: a private Postgres and a private Valkey below one data folder.

Owns the folder lock and the order of starting and stopping. Knows nothing of tables or keys.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from pydantic import SecretStr

from gateway.local.child import LocalStoreError
from gateway.local.keeper import StoreKeeper
from gateway.local.paths import data_dir, ensure_dir
from gateway.local.postgres import PrivatePostgres, running_url
from gateway.local.private_server import PrivateServer
from gateway.local.valkey import PrivateValkey
from gateway.settings import Settings

__all__ = ["LocalStoreError", "LocalStores", "StoreUrls", "open_database", "open_stores"]


@dataclass(frozen=True, slots=True)
class StoreUrls:
    """The addresses of the two stores. `repr` hides the passwords."""

    database_url: str
    redis_url: str
    keeper: StoreKeeper | None = None
    """Watches the private ones; None where both are configured."""

    def __repr__(self) -> str:
        return "StoreUrls(...)"


class LocalStores:
    """Starts what is needed on entry, stops it on exit. Several with different folders run side by side.

    `with LocalStores(folder) as urls:`; a second process on the same folder is refused.
    """

    def __init__(self, folder: Path, *, postgres: bool = True, valkey: bool = True) -> None:
        self._folder = folder
        self.postgres = PrivatePostgres(folder / "postgres") if postgres else None
        self.valkey = PrivateValkey(folder / "valkey") if valkey else None
        self._stack = contextlib.ExitStack()

    @property
    def servers(self) -> tuple[PrivateServer, ...]:
        return tuple(server for server in (self.postgres, self.valkey) if server is not None)

    def __enter__(self) -> StoreUrls:
        with self._stack as stack:
            ensure_dir(self._folder)
            stack.enter_context(_folder_lock(self._folder / "stores.lock"))
            database_url = redis_url = ""
            if self.postgres is not None:
                stack.callback(self.postgres.stop)
                database_url = self.postgres.start()
            if self.valkey is not None:
                stack.callback(self.valkey.stop)
                redis_url = self.valkey.start()
            self._stack = stack.pop_all()
        return StoreUrls(database_url=database_url, redis_url=redis_url)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()


@contextlib.asynccontextmanager
async def open_stores(settings: Settings) -> AsyncIterator[StoreUrls]:
    """The configured URLs, with a private store in place of each one that is not configured.

    A private store that dies meanwhile is brought back. Raises `LocalStoreError` when one cannot be started.
    """
    configured = settings.store
    stores = LocalStores(
        data_dir(settings), postgres=configured.database_url is None, valkey=configured.redis_url is None
    )
    if not stores.servers:
        yield StoreUrls(_chosen(configured.database_url, None), _chosen(configured.redis_url, None))
        return
    private = await asyncio.to_thread(stores.__enter__)
    keeper = StoreKeeper(stores.servers)
    keeper.start()
    try:
        yield StoreUrls(
            database_url=_chosen(configured.database_url, private.database_url),
            redis_url=_chosen(configured.redis_url, private.redis_url),
            keeper=keeper,
        )
    finally:
        await keeper.close()
        await asyncio.to_thread(stores.__exit__, None, None, None)


@contextlib.asynccontextmanager
async def open_database(settings: Settings) -> AsyncIterator[str]:
    """For commands: the configured database, else the private one, which is started when nobody runs it now."""
    if settings.store.database_url is not None:
        yield settings.store.database_url.get_secret_value()
        return
    folder = data_dir(settings)
    running = running_url(folder / "postgres")
    if running is not None:
        yield running
        return
    stores = LocalStores(folder, valkey=False)
    urls = await asyncio.to_thread(stores.__enter__)
    try:
        yield urls.database_url
    finally:
        await asyncio.to_thread(stores.__exit__, None, None, None)


def _chosen(configured: SecretStr | None, private: str | None) -> str:
    return (private or "") if configured is None else configured.get_secret_value()


@contextlib.contextmanager
def _folder_lock(path: Path) -> Iterator[None]:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise LocalStoreError(
                f"another esclusa already runs its private stores in {path.parent}; "
                "stop it, or give this one its own ESCLUSA_LOCAL__DATA_DIR"
            ) from None
        yield
    finally:
        os.close(descriptor)
