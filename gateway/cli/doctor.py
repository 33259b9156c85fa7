"""`esclusa doctor`: one row per thing that must hold, with what was found, what is expected and the exact fix.

Every check is bounded in time and never prints a secret. The checks themselves are in `gateway.cli.checks` and
`gateway.cli.surroundings`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as TookTooLong
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from gateway.cli.checks import Finding
    from gateway.settings import Settings

CHECK_TIMEOUT_S = 10.0
SLOW_CHECKS_S = {"kernels": 300.0, "models": 120.0}
"""The first look at the kernels compiles them; reading many models takes seconds each."""
SIGNS = {"ok": ("green", "ok  "), "warn": ("yellow", "warn"), "fail": ("red", "FAIL")}


def doctor(
    config: Path | None = typer.Option(None, "--config", help="Settings file (YAML).", envvar="ESCLUSA_CONFIG"),
    as_json: bool = typer.Option(False, "--json", help="JSON on stdout."),
) -> None:
    """Check this machine and this configuration; exit 1 when something would not work.

    Example: esclusa doctor --config esclusa.yaml
    """
    from gateway.cli.checks import CHECKS
    from gateway.cli.surroundings import SURROUNDINGS
    from gateway.settings import load_settings

    settings = load_settings(config)
    findings = [_bounded(name, check, settings) for name, check in {**CHECKS, **SURROUNDINGS}.items()]
    if as_json:
        print(json.dumps([asdict(finding) for finding in findings], indent=2))
    else:
        _render(findings)
    if any(finding.state == "fail" for finding in findings):
        raise typer.Exit(1)


def _bounded(name: str, check: Callable[[Settings], Finding], settings: Settings) -> Finding:
    """Run one check; a hang or a crash is a finding about that check, not the end of the examination."""
    from gateway.cli.checks import Finding

    pool, timeout_s = ThreadPoolExecutor(max_workers=1), SLOW_CHECKS_S.get(name, CHECK_TIMEOUT_S)
    try:
        return pool.submit(check, settings).result(timeout=timeout_s)
    except TookTooLong:
        return Finding(name, "fail", f"no answer within {timeout_s:.0f} s", "an answer", "see whether it is up")
    except Exception as error:  # noqa: BLE001  a boundary of the command line: the other checks must still run
        return Finding(name, "fail", f"{type(error).__name__}: {error}", "the check to run", "report this as a bug")
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def _render(findings: list[Finding]) -> None:
    from rich.console import Console

    console = Console(highlight=False)
    for finding in findings:
        color, sign = SIGNS[finding.state]
        console.print(f"[{color}]{sign}[/{color}] {finding.check:18} {finding.found}", soft_wrap=True)
        if finding.state != "ok":
            console.print(f"     {'expected':18} {finding.wanted}", soft_wrap=True)
            console.print(f"     {'fix':18} {finding.fix}", soft_wrap=True)
    bad = sum(finding.state == "fail" for finding in findings)
    print(f"{len(findings)} checks, {bad} failed", file=sys.stderr)
