"""`esclusa config show`: the settings in force, secrets masked."""

from __future__ import annotations

from pathlib import Path

import typer

app = typer.Typer(help="The settings in force.", no_args_is_help=True)


@app.callback()
def group() -> None:
    """Keeps `show` a subcommand while it is the only one."""


@app.command()
def show(
    config: Path | None = typer.Option(None, "--config", help="Settings file (YAML).", envvar="ESCLUSA_CONFIG"),
) -> None:
    """Print the effective settings as JSON; secrets appear as asterisks.

    Example: esclusa config show --config esclusa.yaml
    """
    from gateway.settings import load_settings

    print(load_settings(config).model_dump_json(indent=2))
