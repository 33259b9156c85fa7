"""`esclusa bench`: the measurements behind every number in the README. stdout is the result, stderr the progress."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import typer

app = typer.Typer(help="Measure the engine, the kernels and the gateway on this machine.", no_args_is_help=True)


@app.command()
def engine(
    model: str = typer.Option("smollm2-135m-instruct", "--model", help="Demo model id, directory or GGUF file."),
    requests: int = typer.Option(64, min=1, help="Number of requests."),
    min_len: int = typer.Option(32, min=1, help="Shortest prompt and output."),
    max_len: int = typer.Option(256, min=1, help="Longest prompt and output."),
    seed: int = typer.Option(0, help="Seed of the workload."),
    concurrency: int | None = typer.Option(None, min=1, help="Requests in flight; all at once when not given."),
    quantization: str | None = typer.Option(None, help="As for `serve`, for example int8."),
    temperature: float = typer.Option(0.0, min=0.0, max=2.0, help="0 is greedy."),
    top_p: float = typer.Option(1.0, min=0.0, max=1.0),
    threads: int | None = typer.Option(None, min=1, help="Torch threads; default: the cores of this process."),
    vs: str = typer.Option("", help="Peers, comma-separated: hf-sequential,hf-static,vllm,llama-cpp[-q8_0|-q4_0]."),
    vllm_python: Path | None = typer.Option(None, help="Python of an environment with vLLM for CPU."),
    llama_server: Path | None = typer.Option(None, help="llama.cpp's llama-server (llama-quantize beside it)."),
    repeats: int = typer.Option(1, min=1, help="Rounds over all systems; medians are reported."),
    mixed_step_factor: float = typer.Option(
        0.0, min=0.0, help="Pacing of prefill, as for `serve` (there 2.2). 0, none: nobody reads these streams."
    ),
    scenarios: bool = typer.Option(
        False, "--scenarios", help="Also a warm prefix, prefill beside streams, sampling and memory (a minute or two)."
    ),
    peer_seconds: float = typer.Option(
        240.0, min=10.0, help="Measure a part of the workload of llama-cpp when all of it would take longer."
    ),
    as_json: bool = typer.Option(False, "--json", help="JSON on stdout."),
) -> None:
    """Output tokens per second of our engine, beside peers on the same weights and token ids.

    The workload is offline use: everything is submitted at once and prefill is not paced. `--scenarios` runs with the
    configuration of serving and adds to our row: ttft_cold_s, ttft_warm_s, warm_fraction (a shared prefix of 1,024
    tokens); itl_p99_idle_s, itl_p99_beside_prefill_s, prefill_stretch (16 streams, a prompt of 2,000 tokens beside
    them); greedy_step_s, sampled_step_s, sampling_overhead_fraction (64 running, temperature 0.8 and top_p 0.95);
    model_bytes, kv_cache_bytes, peak_rss_over_model_and_kv_bytes.

    Example: esclusa bench engine --requests 64 --scenarios --vs hf-static --json
    """
    from engine.benchmark.child import BenchmarkError
    from engine.benchmark.suite import Peers, run_suite
    from gateway.errors import ConfigError

    if min_len > max_len:
        raise typer.BadParameter(f"--min-len {min_len} is above --max-len {max_len}")
    job = {
        "model": str(_model_path(model)), "requests": requests, "min_len": min_len, "max_len": max_len, "seed": seed,
        "concurrency": concurrency, "quantization": quantization, "temperature": temperature, "top_p": top_p,
        "threads": threads, "mixed_step_factor": mixed_step_factor,
    }  # fmt: skip
    peers = tuple(name.strip() for name in vs.split(",") if name.strip())
    try:
        where = Peers(vllm_python, llama_server, time_limit_s=peer_seconds)
        report = run_suite(job, peers, where, repeats=repeats, say=_say, scenarios=scenarios)
    except BenchmarkError as error:
        raise ConfigError(str(error)) from error
    if as_json:
        print(json.dumps(report, indent=2))
    else:
        _engine_table(report)


@app.command()
def quality(
    model: str = typer.Option("smollm2-135m-instruct", "--model", help="Demo model id, directory or GGUF file."),
    quantization: str = typer.Option("int8,int4", help="Comma-separated: int8,int4,gguf (gguf: GGUF files only)."),
    text: Path | None = typer.Option(
        None, exists=True, dir_okay=False, help="UTF-8 text; default: the shipped sample."
    ),
    threads: int | None = typer.Option(None, min=1, help="Torch threads; default: the cores of this process."),
    as_json: bool = typer.Option(False, "--json", help="JSON on stdout."),
) -> None:
    """Perplexity of a text per quantization, and divided by that of bf16 (`over_bf16`).

    Example: esclusa bench quality --quantization int8,int4,gguf --json
    """
    from engine.benchmark.child import BenchmarkError
    from engine.benchmark.quality import compare
    from gateway.errors import ConfigError

    names = tuple(name.strip() for name in quantization.split(",") if name.strip())
    job = {"model": str(_model_path(model)), "threads": threads, "text": None if text is None else str(text.absolute())}
    try:
        report = compare(job, names, _say)
    except BenchmarkError as error:
        raise ConfigError(str(error)) from error
    if as_json:
        print(json.dumps(report, indent=2))
        return
    print(f"{'weights':10}{'perplexity':>12}{'over bf16':>12}")
    for row in report["rows"]:
        print(f"{row['quantization']:10}{row['perplexity']:12.4f}{row['over_bf16']:12.4f}")


@app.command()
def kernels(as_json: bool = typer.Option(False, "--json", help="JSON on stdout.")) -> None:
    """Time each op per back end in GB/s and GFLOP/s against the machine's own ceilings.

    Example: esclusa bench kernels --json
    """
    from kernels.bench import bench_kernels

    rows = [row.as_dict() for row in bench_kernels()]
    if as_json:
        print(json.dumps(rows, indent=2))
        return
    for row in rows:
        print("  ".join(f"{key}={value}" for key, value in row.items()))


@app.command()
def gateway(
    concurrency: str = typer.Option("1,16,64", help="Connections, comma-separated."),
    duration: float = typer.Option(10.0, min=1.0, max=120.0, help="Seconds per measurement."),
    repeats: int = typer.Option(1, min=1, help="Rounds over all systems; medians are reported."),
    audit_mode: str = typer.Option("fast", help="fast, standard or strict."),
    vs: str = typer.Option("", help="Peers, comma-separated: litellm,portkey."),
    litellm_python: Path | None = typer.Option(None, help="Python of an environment with litellm[proxy]."),
    portkey_dir: Path | None = typer.Option(None, help="Folder in which npm installed @portkey-ai/gateway."),
    as_json: bool = typer.Option(False, "--json", help="JSON on stdout."),
) -> None:
    """Requests per second of the whole gateway on one core, in front of an upstream that answers at once.

    Example: esclusa bench gateway --concurrency 1,16,64 --duration 10 --json
    """
    from gateway.benchmark.suite import BenchmarkError, Plan, run_suite
    from gateway.benchmark.systems import SystemFailed
    from gateway.errors import ConfigError

    if audit_mode not in ("fast", "standard", "strict"):
        raise typer.BadParameter(f"--audit-mode {audit_mode!r}; expected fast, standard or strict")
    try:
        levels = tuple(int(text) for text in concurrency.split(","))
    except ValueError:
        raise typer.BadParameter(f"--concurrency {concurrency!r}; expected numbers such as 1,16,64") from None
    peers = tuple(name.strip() for name in vs.split(",") if name.strip())
    plan = Plan(levels, duration, repeats, audit_mode, peers, litellm_python, portkey_dir)
    try:
        report = run_suite(plan, _say)
    except (BenchmarkError, SystemFailed) as error:
        raise ConfigError(str(error)) from error
    if as_json:
        print(json.dumps(report, indent=2))
        return
    print(f"{'system':10}{'connections':>12}{'req/s':>10}{'p50 ms':>9}{'p99 ms':>9}{'errors':>8}")
    for row in report["rows"]:
        print(
            f"{row['system']:10}{row['concurrency']:12}{row['requests_per_s']:10.0f}{row['p50_ms']:9.2f}"
            f"{row['p99_ms']:9.2f}{row['errors']:8}"
        )
    print(f"policy decision over 1,000 rules: p99 {report['policy_p99_us']} microseconds")


SCENARIO_FIELDS = (
    "ttft_cold_s", "ttft_warm_s", "warm_fraction", "itl_p99_idle_s", "itl_p99_beside_prefill_s", "prefill_stretch",
    "greedy_step_s", "sampled_step_s", "sampling_overhead_fraction", "model_bytes", "kv_cache_bytes",
    "peak_rss_over_model_and_kv_bytes",
)  # fmt: skip


def _engine_table(report: dict[str, Any]) -> None:
    print(f"{'system':18}{'tok/s':>9}{'one stream':>12}{'ours is':>9}{'ready s':>9}  note")
    for row in report["rows"]:
        ratio = report["ratio"].get(row["system"])
        print(
            f"{row['system']:18}{row['output_tokens_per_s']:9.1f}{row.get('single_stream_tokens_per_s') or 0:12.1f}"
            f"{f'{ratio:.1f}x' if ratio else '':>9}{row.get('ready_s') or 0:9.1f}  {row.get('note', '')}"
        )
    for name, reason in report["failed"].items():
        print(f"{name:18} not measured: {reason.splitlines()[0]}")
    for field in SCENARIO_FIELDS:
        if field in report:
            print(f"{field:34}{report[field]}")


def _model_path(model: str) -> Path:
    """A path as given, or the file of a demo model, fetched when absent."""
    path = Path(model).expanduser()
    if path.exists():
        return path.absolute()
    from gateway.cli.models import ProgressLine, models_dir
    from gateway.local.models import DEMO_MODELS, fetch

    for asset in DEMO_MODELS:
        if asset.id == model:
            return fetch(asset, models_dir(), ProgressLine(asset.title))
    raise typer.BadParameter(f"{model!r} is no file and no demo model; demo models: {[a.id for a in DEMO_MODELS]}")


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
