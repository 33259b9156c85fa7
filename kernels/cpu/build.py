"""Builds the C++ kernels once per source, compiler and instruction set, and loads them.

Owns the compiler call, the cache of built libraries and the choice of instruction set at run time. The library links
to nothing of torch and is called through ctypes: it builds in seconds and brings no second OpenMP runtime. Nothing is
built at import. Two processes that build at once are safe: a file lock, then an atomic rename.
"""

from __future__ import annotations

import ctypes
import fcntl
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from pathlib import Path

SOURCES = Path(__file__).parent / "csrc"
COMMON_FLAGS = ("-std=c++17", "-fPIC", "-fno-math-errno", "-fvisibility=hidden", "-pthread")
QUIET = ("-w",)
"""A newer compiler's new warning must neither stop nor fill the log of somebody who only runs the product."""
STRICT = ("-Wall", "-Wextra", "-Werror")
OPTIMIZED = ("-O3",)
SANITIZED = ("-O1", "-g", "-fno-omit-frame-pointer", "-fsanitize=address,undefined", "-fno-sanitize-recover=undefined")
"""Loads only into a process that has the sanitizers' run time from its start (`make sanitize`)."""
AVX512 = (
    "-mavx512f",
    "-mavx512bw",
    "-mavx512dq",
    "-mavx512vl",
    "-mavx2",
    "-mfma",
    "-mf16c",
    "-mprefer-vector-width=512",
)
ISA_FLAGS: dict[str, tuple[str, ...]] = {
    "avx512_fp16": (*AVX512, "-mavx512vnni", "-mavx512bf16", "-mavx512fp16"),
    "avx512_bf16": (*AVX512, "-mavx512vnni", "-mavx512bf16"),
    "avx512": AVX512,
    "avx2": ("-mavx2", "-mfma", "-mf16c"),
    "scalar": (),
}
"""Fastest first. Each library runs only where the CPU has all of its instructions."""
AVX2_NEEDS = frozenset({"avx2", "fma", "f16c"})
AVX512_NEEDS = AVX2_NEEDS | {"avx512f", "avx512bw", "avx512dq", "avx512vl"}
ISA_NEEDS: dict[str, frozenset[str]] = {
    "avx512_fp16": AVX512_NEEDS | {"avx512_vnni", "avx512_bf16", "avx512_fp16"},
    "avx512_bf16": AVX512_NEEDS | {"avx512_vnni", "avx512_bf16"},
    "avx512": AVX512_NEEDS,
    "avx2": AVX2_NEEDS,
    "scalar": frozenset(),
}
ISA_VARIABLE = "ESCLUSA_CPU_ISA"
CACHE_VARIABLE = "ESCLUSA_KERNEL_CACHE"
STRICT_VARIABLE = "ESCLUSA_CPU_WERROR"
SANITIZE_VARIABLE = "ESCLUSA_CPU_SANITIZE"
"""Set to 1 by developers: warnings are errors; the library checks its own memory accesses and arithmetic."""
COMPILER_TIMEOUT_S = 300


class BuildError(RuntimeError):
    """The kernels cannot be built or loaded here; the message says why."""


def availability() -> tuple[bool, str, str]:
    """(usable, why not, how). Builds on the first call, which takes seconds; later calls are free."""
    try:
        return True, "", f"C++ kernels, {best_library()[1]}"
    except BuildError as error:
        return False, str(error), ""


def cpu_flags() -> frozenset[str]:
    """Instruction sets that both the CPU and the system offer (Linux); empty elsewhere."""
    if platform.machine() not in ("x86_64", "AMD64"):
        return frozenset()
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return frozenset()
    line = next((line for line in text.splitlines() if line.startswith("flags")), "")
    return frozenset(line.partition(":")[2].split())


def candidate_isas() -> list[str]:
    """Instruction sets of this CPU, fastest first; only what `ESCLUSA_CPU_ISA` names where set. Raises `BuildError`."""
    flags = cpu_flags()
    asked = os.environ.get(ISA_VARIABLE)
    if not asked:
        return [isa for isa, needs in ISA_NEEDS.items() if needs <= flags]
    if asked not in ISA_NEEDS:
        raise BuildError(f"{ISA_VARIABLE}={asked!r} is unknown; choose one of {', '.join(ISA_NEEDS)}")
    missing = ISA_NEEDS[asked] - flags
    if missing:
        raise BuildError(f"{ISA_VARIABLE}={asked} needs {', '.join(sorted(missing))}, which this CPU lacks")
    return [asked]


def best_library() -> tuple[ctypes.CDLL, str]:
    """The library of the best instruction set that the compiler knows too. Raises the first `BuildError` if none is."""
    failure: BuildError | None = None
    for isa in candidate_isas():
        try:
            return load(isa), isa
        except BuildError as error:
            # An older compiler may not know the newest instructions; the next set down still helps.
            failure = failure or error
    raise failure or BuildError("no instruction set fits this CPU")


def compiler() -> str:
    """The C++ compiler: `CXX` or g++ (the kernels use GCC vector extensions). Raises `BuildError`."""
    for name in (os.environ.get("CXX"), "g++", "c++"):
        found = shutil.which(name) if name else None
        if found:
            return found
    raise BuildError("no C++ compiler: install g++ (12 or newer), or set CXX")


def cache_directory() -> Path:
    chosen = os.environ.get(CACHE_VARIABLE)
    if chosen:
        return Path(chosen)
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "esclusa" / "kernels"


def compiler_flags(isa: str) -> tuple[str, ...]:
    """All flags of one instruction set, by the developers' variables."""
    warnings = STRICT if os.environ.get(STRICT_VARIABLE) == "1" else QUIET
    checks = SANITIZED if os.environ.get(SANITIZE_VARIABLE) == "1" else OPTIMIZED
    return (*COMMON_FLAGS, *warnings, *checks, *ISA_FLAGS[isa])


def library_path(isa: str) -> Path:
    """The path of the library of this source: any change of source, flags or machine type makes another name."""
    digest = hashlib.sha256()
    for source in sorted(SOURCES.iterdir()):
        digest.update(source.name.encode() + b"\0" + source.read_bytes())
    digest.update(repr((compiler_flags(isa), platform.machine(), sys.platform)).encode())
    return cache_directory() / f"libesclusa-{isa}-{digest.hexdigest()[:16]}.so"


@lru_cache
def load(isa: str) -> ctypes.CDLL:
    """The library for one instruction set, built if it is not in the cache yet. Raises `BuildError`."""
    path = library_path(isa)
    if not path.exists():
        build(isa)
    try:
        return ctypes.CDLL(str(path))
    except OSError as error:
        raise BuildError(f"the built kernels do not load: {error}") from error


def build(isa: str) -> Path:
    """Compile and put into the cache; another process doing the same is waited for. Raises `BuildError`."""
    target = library_path(isa)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        lock = (target.parent / f"{target.stem}.lock").open("w")
    except OSError as error:
        raise BuildError(f"the kernel cache {target.parent} is not writable: {error.strerror}") from error
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not target.exists():
            _compile(compiler(), isa, target)
    return target


def _compile(cxx: str, isa: str, target: Path) -> None:
    started = time.monotonic()
    sys.stderr.write(f"esclusa: building the CPU kernels ({isa}), once per version ...\n")
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        sources = sorted(SOURCES.glob("*.cpp"))
        objects = [Path(scratch) / f"{source.stem}.o" for source in sources]
        flags = compiler_flags(isa)
        commands = [
            [cxx, *flags, "-c", str(source), "-o", str(obj)] for source, obj in zip(sources, objects, strict=True)
        ]
        with ThreadPoolExecutor(max_workers=max(1, min(4, os.cpu_count() or 1))) as pool:
            list(pool.map(_run, commands))
        library = Path(scratch) / target.name
        _run([cxx, "-shared", *flags, *map(str, objects), "-o", str(library)])
        # Atomic: nobody ever sees half a library.
        library.replace(target)
    sys.stderr.write(f"esclusa: CPU kernels built in {time.monotonic() - started:.1f} s\n")


def _run(command: list[str]) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=COMPILER_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BuildError(f"the compiler {command[0]} did not finish: {error}") from error
    if done.returncode:
        first = next((line for line in done.stderr.splitlines() if "error" in line), done.stderr[:200])
        raise BuildError(f"the compiler {command[0]} failed: {first.strip()}")


def main(arguments: list[str]) -> int:
    """`python -m kernels.cpu.build [ISA ...]`: fill the cache ahead of time (container images); all sets by default."""
    unknown = [name for name in arguments if name not in ISA_FLAGS]
    if unknown:
        sys.stderr.write(f"unknown: {', '.join(unknown)}; choose from {', '.join(ISA_FLAGS)}\n")
        return 2
    failures = 0
    for isa in arguments or ISA_FLAGS:
        try:
            sys.stdout.write(f"{build(isa)}\n")
        except BuildError as error:
            failures += 1
            sys.stderr.write(f"{isa}: {error}\n")
    return 1 if failures else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
