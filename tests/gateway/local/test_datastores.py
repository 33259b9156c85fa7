"""Private stores as processes: start, stop, survive kill -9, live side by side, keep passwords to themselves."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gateway.local.child import LocalStoreError, Tie, command_line, is_alive
from gateway.local.datastores import LocalStores, open_database, open_stores
from gateway.local.postgres import PrivatePostgres, running_url
from gateway.local.valkey import PrivateValkey
from gateway.settings import load_settings
from gateway.storage.postgres import connect_raw
from tests.fakes.valkey_raw import ask

ROOT = Path(__file__).parents[3]


@pytest.fixture
def folder() -> Iterator[Path]:
    """Fresh, and open to the user that Postgres runs as; pytest's own folder is private."""
    made = Path(tempfile.mkdtemp(prefix="esclusa-local-"))
    made.chmod(0o711)
    yield made
    shutil.rmtree(made, ignore_errors=True)


async def value(url: str, query: str) -> object:
    connection = await connect_raw(url)
    try:
        return await connection.fetchval(query)
    finally:
        await connection.close()


async def test_both_stores_start_answer_and_stop(folder: Path) -> None:
    stores: Any = LocalStores(folder)
    with stores as urls:
        assert str(await value(urls.database_url, "SHOW server_version")).startswith("18")
        assert ask(urls.redis_url, "PING") == b"+PONG\r\n"
        pids = (stores.postgres.pid, stores.valkey.pid)
    assert [is_alive(pid) for pid in pids] == [False, False]


async def test_data_survives_a_restart(folder: Path) -> None:
    with LocalStores(folder) as urls:
        await value(urls.database_url, "CREATE TABLE kept AS SELECT 7 AS n")
        ask(urls.redis_url, "SET presupuesto 42")
    with LocalStores(folder) as urls:
        assert await value(urls.database_url, "SELECT n FROM kept") == 7
        assert ask(urls.redis_url, "GET presupuesto") == b"$2\r\n42\r\n"


async def test_two_folders_run_side_by_side(folder: Path) -> None:
    with LocalStores(folder / "one") as one, LocalStores(folder / "two") as two:
        await value(one.database_url, "CREATE TABLE only_here ()")
        assert await value(two.database_url, "SELECT to_regclass('only_here')") is None
        assert ask(one.redis_url, "SET k 1") == b"+OK\r\n"
        assert ask(two.redis_url, "GET k") == b"$-1\r\n"


def test_a_second_start_on_the_same_folder_is_refused_with_the_way_out(folder: Path) -> None:
    with LocalStores(folder, postgres=False), pytest.raises(LocalStoreError, match="ESCLUSA_LOCAL__DATA_DIR"):
        LocalStores(folder, postgres=False).__enter__()


async def test_servers_killed_with_minus_nine_start_again_with_their_data(folder: Path) -> None:
    stores: Any = LocalStores(folder)
    with stores as urls:
        await value(urls.database_url, "CREATE TABLE kept AS SELECT 7 AS n")
        os.kill(stores.postgres.pid, signal.SIGKILL)
        os.kill(stores.valkey.pid, signal.SIGKILL)
    with LocalStores(folder) as urls:
        assert await value(urls.database_url, "SELECT n FROM kept") == 7


def start_and_kill_a_gateway(folder: Path) -> list[int]:
    """A process that starts both stores and is ended with SIGKILL; the pids of the stores it leaves."""
    script = (
        "import sys, time; from pathlib import Path; from gateway.local.datastores import LocalStores\n"
        "stores = LocalStores(Path(sys.argv[1])); stores.__enter__()\n"
        "print(stores.postgres.pid, stores.valkey.pid, flush=True); time.sleep(60)"
    )
    command = [sys.executable, "-c", script, str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT, text=True) as gateway:
        assert gateway.stdout is not None
        pids = [int(pid) for pid in gateway.stdout.readline().split()]
        gateway.kill()
    return pids


def wait_gone(pids: list[int], limit_s: float = 20.0) -> bool:
    deadline = time.monotonic() + limit_s
    while any(is_alive(pid) for pid in pids) and time.monotonic() < deadline:
        time.sleep(0.05)
    return not any(is_alive(pid) for pid in pids)


def test_a_killed_gateway_leaves_no_server_behind(folder: Path) -> None:
    assert wait_gone(start_and_kill_a_gateway(folder))


def test_a_tie_does_not_touch_a_stranger_with_the_same_number() -> None:
    stranger = subprocess.Popen(["sleep", "30"])
    tie = Tie(stranger.pid, "/data/of/a/store", signal.SIGTERM)
    os.close(tie._writing)
    assert tie._shell.wait(10) != -signal.SIGKILL
    assert stranger.poll() is None
    stranger.kill()
    stranger.wait()


async def test_servers_that_outlived_their_gateway_are_replaced_by_the_next_start(folder: Path) -> None:
    stores: Any = LocalStores(folder)
    stores.__enter__()
    old = [stores.postgres, stores.valkey]
    pids = [server.pid for server in old]
    reaper = threading.Thread(target=lambda: [server._process.wait() for server in old])
    reaper.start()
    for server in old:
        server._tie.cut()
        server._tie = None
    stores._stack.pop_all()
    assert [is_alive(pid) for pid in pids] == [True, True]
    (folder / "stores.lock").unlink()  # the dead process would hold no lock
    with LocalStores(folder) as urls:
        reaper.join(5)
        assert [is_alive(pid) for pid in pids] == [False, False]
        assert await value(urls.database_url, "SELECT 1") == 1


def test_a_stale_pid_file_that_names_another_program_is_put_aside(folder: Path) -> None:
    server = PrivatePostgres(folder / "postgres", options={"fsync": "off"})
    server.start()
    server.stop()
    (folder / "postgres" / "data" / "postmaster.pid").write_text(f"{os.getpid()}\n/elsewhere\n")
    server.start()
    assert is_alive(os.getpid())
    server.stop()


def test_strangers_on_this_machine_need_the_password(folder: Path) -> None:
    valkey = PrivateValkey(folder / "valkey")
    url = valkey.start()
    port = valkey.port
    assert ask(f"redis://127.0.0.1:{port}/0", "GET k").startswith(b"-NOAUTH")
    assert ask(f"redis://:wrong@127.0.0.1:{port}/0", "GET k").startswith(b"-WRONGPASS")
    assert ask(url, "GET k") == b"$-1\r\n"
    valkey.stop()


async def test_postgres_needs_the_password_too(folder: Path) -> None:
    postgres = PrivatePostgres(folder / "postgres", options={"fsync": "off"})
    url = postgres.start()
    with pytest.raises(Exception, match="password authentication failed"):
        await value(url.replace("esclusa:", "esclusa:wrong"), "SELECT 1")
    postgres.stop()


def test_passwords_are_in_files_of_ours_alone_and_on_no_command_line(folder: Path) -> None:
    stores: Any = LocalStores(folder)
    with stores:
        secrets = [folder / "postgres" / "password", folder / "valkey" / "password", folder / "valkey" / "valkey.conf"]
        assert [stat.S_IMODE(path.stat().st_mode) for path in secrets] == [0o600] * 3
        for pid, path in ((stores.postgres.pid, secrets[0]), (stores.valkey.pid, secrets[1])):
            assert path.read_text() not in (command_line(pid) or "")


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux answers on all of 127.0.0.0/8")
def test_the_stores_listen_on_one_loopback_address_only(folder: Path) -> None:
    stores: Any = LocalStores(folder)
    with stores:
        for port in (stores.postgres.port, stores.valkey.port):
            with pytest.raises(ConnectionRefusedError), socket.create_connection(("127.0.0.2", port), timeout=1):
                pass


@pytest.mark.skipif(os.geteuid() != 0, reason="about running as root")
def test_as_root_no_parent_is_opened_and_an_unreachable_folder_is_refused(folder: Path) -> None:
    private = folder / "private"
    private.mkdir(mode=0o700)
    with pytest.raises(LocalStoreError, match="ESCLUSA_LOCAL__DATA_DIR"):
        PrivatePostgres(private / "postgres").start()
    assert stat.S_IMODE(private.stat().st_mode) == 0o700


@pytest.mark.skipif(os.geteuid() != 0, reason="about running as root")
def test_as_root_the_server_runs_as_another_user(folder: Path) -> None:
    server = PrivatePostgres(folder / "postgres", options={"fsync": "off"})
    server.start()
    assert Path(f"/proc/{server.pid}").stat().st_uid != 0
    server.stop()


def test_a_server_that_cannot_start_says_what_its_log_says(folder: Path) -> None:
    server = PrivatePostgres(folder / "postgres", options={"fsync": "off", "no_such_setting": "1"})
    with pytest.raises(LocalStoreError, match="no_such_setting"):
        server.start()


async def test_configured_urls_are_used_as_they_are() -> None:
    settings = load_settings(environment={"DATABASE_URL": "postgresql://a:b@h/d", "REDIS_URL": "redis://r/0"})
    async with open_stores(settings) as urls:
        assert (urls.database_url, urls.redis_url) == ("postgresql://a:b@h/d", "redis://r/0")


async def test_only_the_missing_store_is_private(folder: Path) -> None:
    environment = {"DATABASE_URL": "postgresql://a:b@h/d", "ESCLUSA_LOCAL__DATA_DIR": str(folder)}
    async with open_stores(load_settings(environment=environment)) as urls:
        assert urls.database_url == "postgresql://a:b@h/d"
        assert ask(urls.redis_url, "PING") == b"+PONG\r\n"
    assert not (folder / "postgres").exists()


async def test_a_command_uses_the_server_that_already_runs(folder: Path) -> None:
    settings = load_settings(environment={"ESCLUSA_LOCAL__DATA_DIR": str(folder)})
    with LocalStores(folder) as urls:
        async with open_database(settings) as url:
            assert url == urls.database_url
    assert running_url(folder / "postgres") is None
    async with open_database(settings) as url:
        assert await value(url, "SELECT 1") == 1


def test_a_repr_shows_no_password(folder: Path) -> None:
    with LocalStores(folder, postgres=False) as urls, contextlib.closing(socket.socket()):
        assert "redis" not in repr(urls)


def test_stopping_does_not_wait_for_an_open_session(folder: Path) -> None:
    server = PrivatePostgres(folder / "postgres", options={"fsync": "off"})
    server.start()
    with socket.create_connection(("127.0.0.1", server.port or 0)) as session:
        server.stop()
        assert session.fileno() != -1, "the session was still open when the server had stopped"
    assert not server.running
