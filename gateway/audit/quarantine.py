"""`spool/quarantine/`: damaged segments, kept whole for a person to look at. The product never deletes anything here.

`boot-<id>/<number>.log` is the file as it was found, `<number>.json` beside it names its damaged bytes and the records
that are lost. No folder here bears a boot's bare id: versions before the quarantine take such a one for the spool of a
dead process, and delete it. Knows files; not how damage is found.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from dataclasses import dataclass
from pathlib import Path

import orjson

from gateway.audit.canonical import parse_json
from gateway.audit.damage import Damage, damage_of
from gateway.audit.segment import SUFFIX, segment_path, sync_folder

QUARANTINE = "quarantine"
_NOTE = ".json"


@dataclass(frozen=True, slots=True)
class Kept:
    """The contents of the quarantine: `files`, and the damages noted beside them."""

    files: int = 0
    damages: tuple[Damage, ...] = ()

    @property
    def lost_records(self) -> int:
        """Those whose number is known."""
        return sum(damage.records or 0 for damage in self.damages)


def keep_aside(spool_dir: Path, boot_folder: Path, damage: Damage) -> None:
    """Put the damaged segment aside; a living writer may go on appending to it. Raises `OSError`."""
    source, kept = segment_path(boot_folder, damage.segment), kept_path(spool_dir, damage)
    folder = kept.parent
    folder.mkdir(parents=True, mode=0o700, exist_ok=True)
    if kept.exists() or not source.exists():
        return
    try:
        os.link(source, kept)
    except OSError:
        partial = kept.with_suffix(".partial")
        shutil.copyfile(source, partial)
        partial.replace(kept)
    sync_folder(folder)


def kept_path(spool_dir: Path, damage: Damage) -> Path:
    return spool_dir / QUARANTINE / f"boot-{damage.boot_id}" / damage.file_name


def note(spool_dir: Path, damage: Damage) -> None:
    """Write down beside the file what is damaged, once it is in the trail. Raises `OSError`."""
    path = _note_path(spool_dir, damage)
    noted = _read(path)
    if damage in noted:
        return
    partial = path.with_suffix(".partial")
    damages = [one.data() for one in (*noted, damage)]
    partial.write_bytes(orjson.dumps({"damages": damages}, option=orjson.OPT_INDENT_2))
    partial.replace(path)


def is_noted(spool_dir: Path, damage: Damage) -> bool:
    return damage in _read(_note_path(spool_dir, damage))


def survey(spool_dir: Path) -> Kept:
    """Reads the folder; nothing there is nothing kept."""
    folder = spool_dir / QUARANTINE
    files = sum(1 for _ in folder.glob(f"*/*{SUFFIX}"))
    damages = [damage for path in sorted(folder.glob(f"*/*{_NOTE}")) for damage in _read(path)]
    return Kept(files, tuple(damages))


def _note_path(spool_dir: Path, damage: Damage) -> Path:
    return kept_path(spool_dir, damage).with_suffix(_NOTE)


def _read(path: Path) -> tuple[Damage, ...]:
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        return tuple(damage_of({"damage": one}) for one in parse_json(path.read_bytes())["damages"])
    return ()
