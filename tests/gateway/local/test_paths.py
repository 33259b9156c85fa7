"""Where an installation keeps its files, for root, for a user, and when told otherwise."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from gateway.local.paths import cache_dir, data_dir, ensure_dir, snapshot_dir, spool_dir
from gateway.settings import Settings, load_settings

USER = {"uid": 1000}


def test_root_uses_the_system_folder_that_other_users_can_walk_to() -> None:
    assert data_dir(Settings(), environ={}, uid=0) == Path("/var/lib/esclusa")


def test_a_user_gets_the_xdg_folder() -> None:
    assert data_dir(Settings(), environ={"XDG_DATA_HOME": "/srv/ana"}, uid=1000) == Path("/srv/ana/esclusa")


def test_without_xdg_it_is_below_the_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/ana")
    assert data_dir(Settings(), environ={}, uid=1000) == Path("/home/ana/.local/share/esclusa")


def test_a_relative_xdg_folder_is_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/ana")
    assert data_dir(Settings(), environ={"XDG_DATA_HOME": "here"}, uid=1000).is_relative_to("/home/ana")


def test_the_environment_variable_wins_for_everyone() -> None:
    settings = load_settings(environment={"ESCLUSA_LOCAL__DATA_DIR": "/data/esclusa"})
    assert data_dir(settings, environ={"XDG_DATA_HOME": "/srv/ana"}, uid=0) == Path("/data/esclusa")


def test_the_spool_lies_below_the_data_folder_unless_named() -> None:
    assert spool_dir(load_settings(environment={"ESCLUSA_LOCAL__DATA_DIR": "/d"}), environ={}) == Path("/d/spool")
    assert spool_dir(load_settings(environment={"ESCLUSA_AUDIT__SPOOL_DIR": "/fast/spool"})) == Path("/fast/spool")


def test_the_local_copy_of_the_policy_lies_there_too() -> None:
    assert snapshot_dir(load_settings(environment={"ESCLUSA_LOCAL__DATA_DIR": "/d"}), environ={}) == Path("/d/policies")


def test_downloads_go_to_the_cache() -> None:
    assert cache_dir(environ={"XDG_CACHE_HOME": "/srv/cache"}) == Path("/srv/cache/esclusa")


def test_only_folders_we_make_get_our_mode(tmp_path: Path) -> None:
    theirs = tmp_path / "theirs"
    theirs.mkdir(mode=0o700)
    ensure_dir(theirs / "a" / "b")
    assert stat.S_IMODE(theirs.stat().st_mode) == 0o700
    assert stat.S_IMODE((theirs / "a").stat().st_mode) == 0o711
