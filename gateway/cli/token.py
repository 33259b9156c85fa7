"""`esclusa token`: tokens of the local issuer, for development. Parses and prints; `gateway.local.issuer` signs."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import typer

app = typer.Typer(help="Tokens of the local development issuer.", no_args_is_help=True)


@app.callback()
def token() -> None:
    """Tokens of the local development issuer."""


@app.command("mint")
def mint(
    sub: str = typer.Option(..., "--sub", help="Who the token is for, e.g. u-1042."),
    role: list[str] = typer.Option(..., "--role", help="A role; repeat for several."),
    department: str | None = typer.Option(None, "--department", help="Department, e.g. finance."),
    tenant: str = typer.Option("default", "--tenant", help="Tenant."),
    ttl: int = typer.Option(3600, "--ttl", help="Seconds the token is valid, 1 to 86400."),
    clearance: str | None = typer.Option(
        None, "--clearance", help="Highest data class: public, internal, confidential or restricted."
    ),
    data_dir: Path | None = typer.Option(None, "--data-dir", help="Data folder of local mode."),
    config: Path | None = typer.Option(None, "--config", help="Settings file (YAML)."),
    as_json: bool = typer.Option(False, "--json", help="JSON on stdout."),
) -> None:
    """Sign a token that a gateway in local mode on this machine accepts.

    Example: export TOKEN=$(esclusa token mint --sub u-1042 --role analyst --department finance)
    """
    from gateway.local.issuer import DevIssuer

    issuer = DevIssuer.open(_data_dir(data_dir, config))
    signed = issuer.mint(sub, role, department=department, tenant=tenant, ttl_s=ttl, clearance=clearance)
    if not as_json:
        print(signed)
        print(f"valid for {ttl} s; accepted only by a gateway in local mode with the same data folder", file=sys.stderr)
        return
    print(json.dumps({"token": signed, "token_type": "Bearer", "expires_in": ttl, "issuer": issuer.issuer}))


def _data_dir(given: Path | None, config: Path | None) -> Path:
    if given is not None:
        return given
    from gateway.local.paths import data_dir
    from gateway.settings import load_settings

    return data_dir(load_settings(config))
