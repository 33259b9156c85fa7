"""`esclusa serve`: read the flags, fill what is missing, run until a signal. Progress on stderr, panel on stdout."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import shutil
import sys
import threading
import time
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from prometheus_client.registry import Collector

    from gateway.api.http.startup_app import BootProgress
    from gateway.settings import Settings
    from gateway.wiring.running_services import Services

DEMO_SUBJECT, DEMO_ROLE, DEMO_DEPARTMENT = "u-1042", "analyst", "finance"


def serve(
    local: bool = typer.Option(False, "--local", help="Demo models, dev issuer, loopback only."),
    config: Path | None = typer.Option(None, "--config", help="Settings file (YAML).", envvar="ESCLUSA_CONFIG"),
    host: str | None = typer.Option(None, help="Address to listen on."),
    port: int | None = typer.Option(None, min=0, max=65535, help="Port to listen on."),
    metrics_port: int | None = typer.Option(None, min=0, max=65535, help="Port of /metrics."),
    data_dir: Path | None = typer.Option(None, help="Folder of private stores, spool and keys."),
    model: list[str] = typer.Option([], "--model", help="ID=PATH of a model to serve; repeatable."),
    device: str | None = typer.Option(None, help="auto, cpu or cuda."),
    max_num_seqs: int | None = typer.Option(None, min=1, help="Sequences running at once."),
    max_num_batched_tokens: int | None = typer.Option(None, min=1, help="Token budget of a step."),
    max_model_len: int | None = typer.Option(None, min=2, help="Context window in tokens."),
    gpu_memory_utilization: float | None = typer.Option(None, min=0.05, max=1.0, help="Share of device memory."),
    enable_prefix_caching: bool | None = typer.Option(None, "--enable-prefix-caching/--no-enable-prefix-caching"),
    tensor_parallel_size: int | None = typer.Option(None, min=1),
    kv_cache_dtype: str | None = typer.Option(None, help="auto, or fp8 on GPUs."),
    quantization: str | None = typer.Option(None, help="For example int8; applies to every local model."),
    threads: int | None = typer.Option(None, min=1, help="Torch threads per engine."),
) -> None:
    """Run the gateway: migrate, load models, listen.

    Example: esclusa serve --local --port 9000
    """
    from gateway.settings import load_settings

    engine = {
        "device": device, "max_num_seqs": max_num_seqs, "max_num_batched_tokens": max_num_batched_tokens,
        "max_model_len": max_model_len, "gpu_memory_utilization": gpu_memory_utilization,
        "enable_prefix_caching": enable_prefix_caching, "tensor_parallel_size": tensor_parallel_size,
        "threads": threads, "kv_cache_dtype": kv_cache_dtype,
    }  # fmt: skip
    overrides: dict[str, Any] = {
        "http": _given({"host": host, "port": port, "metrics_port": metrics_port}),
        "local": _given({"enabled": local or None, "data_dir": data_dir}),
        "engine": _given(engine),
    }
    if model:
        overrides["models"] = [_model(text) for text in model]
    settings = load_settings(config, {key: value for key, value in overrides.items() if value})
    if quantization is not None:
        models = tuple(entry.model_copy(update={"quantization": quantization}) for entry in settings.models)
        settings = settings.model_copy(update={"models": models})
    _demand_identity(settings)
    if settings.local.enabled:
        from gateway.local.stack import require_loopback

        require_loopback(settings.http.host)  # before anything listens
    _run(settings)


def _run(settings: Settings) -> None:
    import uvloop

    from gateway.telemetry.logs import configure_logs

    configure_logs(settings.log)
    for warning in lonely_stores(settings):
        logging.getLogger("esclusa.serve").warning("%s", warning)
    try:
        uvloop.run(_serve(settings))
        _leave_stuck_engines()
    except OSError as error:
        from gateway.errors import ConfigError

        if error.filename is None:
            raise  # no file of the configuration: a fault of ours, told with its traceback
        raise ConfigError(
            f"{error.filename}: {error.strerror}", hint="`esclusa doctor` checks folders and files; see the settings"
        ) from error


def _leave_stuck_engines() -> None:
    """A step that never returns would hold the interpreter's own end, or crash in it: everything is closed by now, so
    the process ends without that thread."""
    stuck = [thread.name for thread in threading.enumerate() if thread.name == "esclusa-engine"]
    if stuck:
        log = logging.getLogger("esclusa.engine")
        log.error("%d engine thread(s) are stuck in a step; the process ends without them", len(stuck))
        logging.shutdown()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)


async def _serve(settings: Settings) -> None:
    from gateway.api.http.startup_app import BootProgress
    from gateway.app import serve as run_server
    from gateway.local.stack import fill_gaps

    started = time.monotonic()
    progress = BootProgress()
    progress_task = asyncio.create_task(_tell(progress))
    async with AsyncExitStack() as stack:
        collectors: list[Collector] = []

        async def prepare(boot: BootProgress) -> Settings:
            return await fill_gaps(settings, stack, boot.update, collectors)

        async def ready(services: Services, url: str) -> None:
            progress_task.cancel()
            for collector in collectors:
                services.registry.register(collector)
            _panel(services, url, time.monotonic() - started, lonely_stores(settings))

        stop = asyncio.Event()
        draining = asyncio.create_task(_tell_of_draining(stop, settings.http.shutdown_grace_s))
        try:
            await run_server(settings, prepare=prepare, on_ready=ready, progress=progress, stop=stop)
        finally:
            progress_task.cancel()
            draining.cancel()


async def _tell_of_draining(stop: asyncio.Event, grace_s: float) -> None:
    await stop.wait()
    with contextlib.suppress(OSError):  # the terminal may be gone: that is what SIGHUP says
        print(f"draining: running requests have {grace_s:g} s to end; Ctrl-C again stops at once", file=sys.stderr)


async def _tell(progress: BootProgress) -> None:
    """A line per stage, and one every five seconds or ten percent inside a long one."""
    shown, at_percent, at_s = "", 0.0, 0.0
    while True:
        now = time.monotonic()
        if progress.stage != shown or progress.percent - at_percent >= 10 or (now - at_s > 5 and progress.percent > 0):
            if (progress.stage, progress.percent) != (shown, at_percent):
                percent = f" {progress.percent:.0f} %" if progress.percent else ""
                print(f"  {progress.stage}{percent}", file=sys.stderr, flush=True)
            shown, at_percent, at_s = progress.stage, progress.percent, now
        await asyncio.sleep(0.2)


def lonely_stores(settings: Settings) -> list[str]:
    """The state that only this replica will know, because one store is configured and the other is not. Pure."""
    stores = settings.store
    if stores.database_url is not None and stores.redis_url is None:
        return [
            "REDIS_URL is unset: a private Valkey counts the limits of this replica alone; with several replicas "
            "each grants the whole of every budget"
        ]
    if stores.redis_url is not None and stores.database_url is None:
        return [
            "DATABASE_URL is unset: policies, keys and audit records live in a private Postgres of this replica alone"
        ]
    return []


def _panel(services: Services, url: str, took_s: float, warnings: list[str]) -> None:
    settings = services.settings
    lines = [f"Esclusa {services.version} is ready after {took_s:.1f} s", ""]
    metrics = settings.http.metrics_port
    lines.append(f"  API      {url}/v1        (OpenAI-compatible)")
    lines.append(f"  Admin    {url}/admin/v1")
    if metrics is not None:
        lines.append(f"  Metrics  http://{settings.http.metrics_host}:{metrics}/metrics")
    lines.append(f"  Models   {', '.join([model.id for model in settings.models] + [settings.routing.virtual_model])}")
    for backend in services.backends.values():
        capacity = backend.status().get("kv_capacity")
        if capacity:
            lines.append(f"  KV cache {capacity}")
    for warning in (*warnings, *services.warnings()):
        lines += ["", f"  Warning: {warning}."]
    if settings.local.enabled:
        token = _demo_token(settings)
        lines += [
            "",
            f"  A token for {DEMO_SUBJECT} ({DEMO_ROLE}, {DEMO_DEPARTMENT}), valid for eight hours:",
            "",
            f"export ESCLUSA_TOKEN={token}",
            "",
            "  Your first request:",
            "",
            f'curl {url}/v1/chat/completions -H "Authorization: Bearer $ESCLUSA_TOKEN" '
            "-H 'Content-Type: application/json' "
            '-d \'{"model": "auto", "messages": [{"role": "user", "content": "What is the capital of Peru?"}]}\'',
            "",
            f"  More tokens: {_own_command()} token mint --sub u-7 --role employee --department sales",
        ]
    lines += ["", "  Ctrl-C drains and stops; a second one stops at once."]
    print("\n".join(lines), flush=True)


def _own_command() -> str:
    """As the reader can type it: the path below the current folder when `esclusa` is not on PATH."""
    own = Path(sys.argv[0]).absolute()
    if shutil.which("esclusa") is not None or not own.is_relative_to(Path.cwd()):
        return "esclusa"
    return str(own.relative_to(Path.cwd()))


def _demo_token(settings: Settings) -> str:
    from gateway.local.issuer import DevIssuer
    from gateway.local.paths import data_dir

    issuer = DevIssuer.open(data_dir(settings))
    return issuer.mint(DEMO_SUBJECT, [DEMO_ROLE], department=DEMO_DEPARTMENT, ttl_s=8 * 3600)


def _demand_identity(settings: Settings) -> None:
    from gateway.errors import ConfigError

    if not settings.identity.providers and not settings.local.enabled:
        raise ConfigError(
            "no identity provider is configured, so nobody could use this gateway",
            hint="set `identity.providers` (docs/guides/identity.md), or try `esclusa serve --local`",
        )


def _model(text: str) -> dict[str, str]:
    name, found, path = text.partition("=")
    if not found or not name or not path:
        raise typer.BadParameter(f"{text!r}; expected ID=PATH", param_hint="--model")
    return {"id": name, "path": str(Path(path).expanduser())}


def _given(values: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if value is not None}
