"""A progress bar for long offline calls: tqdm where it is installed, else rich, else none. On stderr."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module


@contextmanager
def progress_bar(total: int, what: str, *, show: bool) -> Iterator[Callable[[int], None]]:
    """Gives a function that advances the bar."""
    if not show or total == 0:
        yield lambda _: None
        return
    try:
        tqdm = import_module("tqdm.auto").tqdm
    except ImportError:
        with _rich_bar(total, what) as advance:
            yield advance
        return
    with tqdm(total=total, desc=what, dynamic_ncols=True) as bar:
        yield lambda count: _ignore(bar.update(count))


def _ignore(_: object) -> None:
    """tqdm tells whether it has drawn."""


@contextmanager
def _rich_bar(total: int, what: str) -> Iterator[Callable[[int], None]]:
    try:
        from rich.console import Console
        from rich.progress import Progress
    except ImportError:
        yield lambda _: None
        return
    with Progress(console=Console(stderr=True)) as progress:
        task = progress.add_task(what, total=total)
        yield lambda count: progress.advance(task, count)
