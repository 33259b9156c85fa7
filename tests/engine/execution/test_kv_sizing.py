"""How much memory a model's KV cache may take: the machine's, or the container's where that is less."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.execution import kv_sizing

MIB = 1 << 20


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)


@pytest.mark.parametrize(
    ("membership", "files"),
    [
        ("0::/\n", {"memory.max": f"{96 * MIB}\n", "memory.current": f"{32 * MIB}\n"}),
        (
            "5:memory:/\n1:name=systemd:/\n",
            {
                "memory/memory.limit_in_bytes": f"{96 * MIB}\n",
                "memory/memory.usage_in_bytes": f"{32 * MIB}\n",
            },
        ),
        (
            "0::/app.slice/gateway.service\n",
            {
                "app.slice/gateway.service/memory.max": "max\n",
                "app.slice/gateway.service/memory.current": f"{20 * MIB}\n",
                "app.slice/memory.max": f"{96 * MIB}\n",
                "app.slice/memory.current": f"{32 * MIB}\n",
            },
        ),
        (
            "4:cpu,cpuacct:/x\n5:memory:/docker/abc\n",  # a container that sees its own group at the root
            {
                "memory/memory.limit_in_bytes": f"{96 * MIB}\n",
                "memory/memory.usage_in_bytes": f"{32 * MIB}\n",
            },
        ),
    ],
    ids=["version 2", "version 1", "a parent's limit", "version 1 with its own root"],
)
def test_a_memory_limit_of_the_container_bounds_what_is_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, membership: str, files: dict[str, str]
) -> None:
    write(tmp_path, {**files, "self": membership})
    monkeypatch.setattr(kv_sizing, "_CGROUP", tmp_path)
    monkeypatch.setattr(kv_sizing, "_MEMBERSHIP", tmp_path / "self")
    assert kv_sizing.available_ram() == 64 * MIB


def test_no_limit_is_no_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    unlimited = {"memory/memory.limit_in_bytes": "9223372036854771712", "memory/memory.usage_in_bytes": "1"}
    write(tmp_path, {**unlimited, "self": "5:memory:/\n"})
    monkeypatch.setattr(kv_sizing, "_CGROUP", tmp_path)
    monkeypatch.setattr(kv_sizing, "_MEMBERSHIP", tmp_path / "self")
    assert kv_sizing.available_ram() > 64 * MIB
