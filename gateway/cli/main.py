"""The `esclusa` command: find the subcommand, import only its module, turn errors into exit codes.

Exit codes: 0 done, 1 a check failed, 2 bad usage, configuration or policy, 3 an audit chain is broken,
4 records of the audit were lost with a damaged spool, 130 interrupted.
stdout is data, stderr is logs and progress.
"""

from __future__ import annotations

import importlib
import logging
import os
import sys
from collections.abc import Sequence

import typer

from gateway.errors import ConfigError

COMMANDS: dict[str, str] = {
    "serve": "gateway.cli.serve",
    "doctor": "gateway.cli.doctor",
    "token": "gateway.cli.token",
    "policy": "gateway.cli.policy",
    "audit": "gateway.cli.audit",
    "db": "gateway.cli.db",
    "models": "gateway.cli.models",
    "quantize": "gateway.cli.quantize",
    "kernels": "gateway.cli.kernels",
    "config": "gateway.cli.config",
    "bench": "gateway.cli.bench",
}
"""Each module has either `app` (a group) or a function of the command's own name."""


def build(argv: Sequence[str]) -> typer.Typer:
    """The application with only what `argv` needs imported; all of it for `--help`."""
    app = typer.Typer(
        name="esclusa",
        help="Enterprise AI gateway that owns its engines: corporate tokens in, audited answers out.",
        epilog="Start here: esclusa serve --local",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
    )

    @app.callback(invoke_without_command=True)
    def root(version: bool = typer.Option(False, "--version", help="Print the version and exit.")) -> None:
        if version:
            from importlib.metadata import version as installed

            print(f"esclusa {installed('esclusa')}")
            raise typer.Exit

    asked = next((word for word in argv if not word.startswith("-")), None)
    for name in [asked] if asked in COMMANDS else () if "--version" in argv else COMMANDS:
        module = importlib.import_module(COMMANDS[name])
        if hasattr(module, "app"):
            app.add_typer(module.app, name=name)
        else:
            app.command(name)(getattr(module, name))
    return app


def main() -> None:
    """Entry point. The one broad boundary of the command line: anything unforeseen is logged with its traceback."""
    os.environ.setdefault("USE_HUB_KERNELS", "0")  # transformers must not take our `kernels` package for its own
    try:
        build(sys.argv[1:])()
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)
    except Exception:
        logging.getLogger("esclusa").exception("unexpected failure; this is a bug, please report it")
        sys.exit(1)


if __name__ == "__main__":
    main()
