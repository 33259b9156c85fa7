"""The header of every measurement: which machine, which versions, which commit."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import resource
import subprocess
from pathlib import Path

TELLING_FLAGS = ("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "avx512_fp16", "avx_vnni", "amx_bf16", "amx_int8")
PACKAGES = ("torch", "transformers", "triton")


def machine_header() -> dict[str, object]:
    """CPU, the instruction sets that matter, cores of this process, memory, versions and commit."""
    cpuinfo = Path("/proc/cpuinfo")
    fields: dict[str, str] = {}
    if cpuinfo.is_file():
        for line in cpuinfo.read_text().splitlines():
            name, _, value = line.partition(":")
            fields.setdefault(name.strip(), value.strip())
    flags = set(fields.get("flags", "").split())
    return {
        "cpu": fields.get("model name", platform.processor()),
        "flags": [flag for flag in TELLING_FLAGS if flag in flags],
        "cores": len(os.sched_getaffinity(0)),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "python": platform.python_version(),
        "versions": {name: _version(name) for name in PACKAGES},
        "commit": _commit(),
    }


def peak_rss_bytes(pid: int | None = None) -> int | None:
    """The most memory that a process (default: this one) held at once; None where the system does not tell.

    Read from `VmHWM`: `ru_maxrss` of a fresh process begins at the size of the one that started it.
    """
    status = Path(f"/proc/{pid or 'self'}/status")
    if status.is_file():
        for line in status.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 if pid is None else None


def busy_cpu_s() -> float | None:
    """CPU seconds that all processes of the machine have used so far; None where the system does not tell."""
    stat = Path("/proc/stat")
    if not stat.is_file():
        return None
    user, nice, system, _idle, _wait, irq, softirq = map(int, stat.read_text().splitlines()[0].split()[1:8])
    return (user + nice + system + irq + softirq) / os.sysconf("SC_CLK_TCK")


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _commit() -> str | None:
    try:
        answer = subprocess.run(
            ["git", "rev-parse", "--short", "HEAD"],
            capture_output=True,
            text=True,
            check=True,
            cwd=Path(__file__).parent,
            timeout=5,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return answer.stdout.strip()
