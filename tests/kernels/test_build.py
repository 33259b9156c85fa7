"""Building and choosing: a cold build, two at once, no compiler, an old compiler, a CPU that lacks what was asked."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from kernels import dispatch
from kernels.cpu import build

PROGRAM = """
from kernels import dispatch
ops = dispatch.load(device="cpu")
print({c.op: (c.backend, c.detail, c.off.get("cpu", "")) for c in ops.report()}["linear"])
"""


def run(tmp_path: Path, **environment: str) -> subprocess.Popen[str]:
    env = {**os.environ, build.CACHE_VARIABLE: str(tmp_path), **environment}
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[tuple[str, str]]]:
    """An empty cache after two processes asked for the same library at once, and what both said."""
    usable, reason, _ = build.availability()
    if not usable:
        pytest.skip(reason)
    cache = tmp_path_factory.mktemp("kernels")
    both = [run(cache, ESCLUSA_CPU_ISA="scalar") for _ in range(2)]
    return cache, [process.communicate(timeout=280) for process in both]


def test_two_processes_that_build_at_once_share_one_library(built: tuple[Path, list[tuple[str, str]]]) -> None:
    cache, answers = built
    assert [out.startswith("('cpu', 'C++ kernels, scalar'") for out, _ in answers] == [True, True], answers
    assert sum("built in" in errors for _, errors in answers) == 1
    assert len(list(cache.glob("*.so"))) == 1


def test_a_built_library_needs_no_compiler(built: tuple[Path, list[tuple[str, str]]]) -> None:
    out, errors = run(built[0], ESCLUSA_CPU_ISA="scalar", PATH="/nowhere", CXX="").communicate(timeout=120)
    assert out.startswith("('cpu'"), errors
    assert "building" not in errors


def test_without_a_compiler_the_reference_runs_and_the_report_says_why(tmp_path: Path) -> None:
    out, errors = run(tmp_path, PATH="/nowhere", CXX="").communicate(timeout=120)
    assert out.startswith("('reference'"), errors
    assert "no C++ compiler" in out


def test_a_compiler_without_the_newest_instructions_builds_the_next_set(
    built: tuple[Path, list[tuple[str, str]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(build.CACHE_VARIABLE, str(built[0]))
    monkeypatch.setattr(build, "candidate_isas", lambda: ["avx2", "scalar"])
    monkeypatch.setitem(build.ISA_FLAGS, "avx2", ("-mno-such-instructions",))
    build.load.cache_clear()
    try:
        assert build.best_library()[1] == "scalar"
    finally:
        build.load.cache_clear()


def test_asking_for_missing_instructions_names_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(build.ISA_VARIABLE, "avx2")
    monkeypatch.setattr(build, "cpu_flags", lambda: frozenset({"fma"}))
    with pytest.raises(build.BuildError, match="needs avx2, f16c, which this CPU lacks"):
        build.candidate_isas()


def test_the_best_instructions_of_the_cpu_come_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(build.ISA_VARIABLE, raising=False)
    monkeypatch.setattr(build, "cpu_flags", lambda: build.AVX512_NEEDS)
    assert build.candidate_isas() == ["avx512", "avx2", "scalar"]


def test_warnings_stop_the_build_of_a_developer_and_nobody_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sources = tmp_path / "csrc"
    sources.mkdir()
    (sources / "odd.cpp").write_text("static int never_called() { return 1; }\n")
    monkeypatch.setattr(build, "SOURCES", sources)
    monkeypatch.setenv(build.CACHE_VARIABLE, str(tmp_path / "cache"))
    monkeypatch.delenv(build.STRICT_VARIABLE, raising=False)
    assert build.build("scalar").exists()
    monkeypatch.setenv(build.STRICT_VARIABLE, "1")
    with pytest.raises(build.BuildError, match="never_called"):
        build.build("scalar")


def test_a_sanitized_library_has_a_name_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(build.SANITIZE_VARIABLE, raising=False)
    shipped = build.library_path("scalar")
    monkeypatch.setenv(build.SANITIZE_VARIABLE, "1")
    assert build.library_path("scalar") != shipped
    assert "-fsanitize=address,undefined" in build.compiler_flags("scalar")


def test_a_sanitized_library_stops_at_a_read_beyond_its_buffer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = subprocess.run(
        [build.compiler(), "-print-file-name=libasan.so"], capture_output=True, text=True, check=True
    ).stdout.strip()
    if not Path(runtime).is_absolute():
        pytest.skip("the compiler brings no AddressSanitizer")
    sources = tmp_path / "csrc"
    sources.mkdir()
    (sources / "read.cpp").write_text(
        'extern "C" __attribute__((visibility("default"))) int at(int* p, int i) { return p[i]; }'
    )
    monkeypatch.setattr(build, "SOURCES", sources)
    monkeypatch.setenv(build.CACHE_VARIABLE, str(tmp_path / "cache"))
    monkeypatch.setenv(build.SANITIZE_VARIABLE, "1")
    library = build.build("scalar")

    def read(index: int) -> subprocess.CompletedProcess[str]:
        program = "import ctypes, sys; print(ctypes.CDLL(sys.argv[1]).at((ctypes.c_int * 1000)(), int(sys.argv[2])))"
        # Python's own allocator would hide the end of the buffer.
        env = {**os.environ, "LD_PRELOAD": runtime, "ASAN_OPTIONS": "detect_leaks=0", "PYTHONMALLOC": "malloc"}
        command = [sys.executable, "-c", program, str(library), str(index)]
        return subprocess.run(command, env=env, capture_output=True, text=True, timeout=120, check=False)

    assert read(999).stdout == "0\n"
    assert "heap-buffer-overflow" in read(1000).stderr


def test_an_unwritable_cache_is_a_reason_not_a_crash(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(build.CACHE_VARIABLE, "/proc/no-such-place")
    with pytest.raises(build.BuildError, match="not writable"):
        build.build("scalar")


def test_every_op_is_reported_with_a_reason_for_each_other_back_end() -> None:
    for choice in dispatch.load("reference", device="cpu").report():
        assert set(choice.off) == set(dispatch.PROBES) - {choice.backend}
        assert all(choice.off.values())


def test_the_cache_can_be_filled_ahead_of_time(
    built: tuple[Path, list[tuple[str, str]]], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(build.CACHE_VARIABLE, str(built[0]))
    assert build.main(["scalar"]) == 0
    assert Path(capsys.readouterr().out.strip()).exists()


def test_filling_the_cache_for_an_unknown_set_lists_the_known(capsys: pytest.CaptureFixture[str]) -> None:
    assert build.main(["mmx"]) == 2
    assert "unknown: mmx; choose from avx512_fp16" in capsys.readouterr().err
