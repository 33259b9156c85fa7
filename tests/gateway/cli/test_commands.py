"""The command line: fast help, data on stdout, errors that name the fix, exit codes."""

from __future__ import annotations

import base64
import json
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from gateway.cli import serve
from gateway.errors import ConfigError
from tests.fakes.tiny_model import write_tiny_model

ROOT = Path(__file__).parents[3]


def esclusa(*words: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    import os

    return subprocess.run(
        [sys.executable, "-m", "gateway", *words],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, **(env or {})},
        check=False,
    )


def test_help_lists_every_command_without_importing_torch() -> None:
    answer = esclusa("--help")
    assert answer.returncode == 0
    for name in ("serve", "doctor", "token", "policy", "audit", "db", "models", "config", "bench"):
        assert name in answer.stdout


@pytest.mark.parametrize("heavy", ["torch", "transformers", "fastapi", "sqlalchemy"])
def test_help_of_one_command_imports_nothing_heavy(heavy: str) -> None:
    """What a command needs is imported when it runs, so that help and completion answer at once."""
    program = f"import sys; from gateway.cli import main; assert {heavy!r} not in sys.modules, 'imported {heavy}'"
    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert answer.returncode == 0, answer.stderr


def test_version_is_printed_on_stdout() -> None:
    assert esclusa("--version").stdout.startswith("esclusa ")


def test_models_list_gives_json_with_pinned_hashes() -> None:
    rows = json.loads(esclusa("models", "list", "--json").stdout)
    assert {row["id"]: row["sha256"][:8] for row in rows} == {
        "smollm2-135m-instruct": "b179c952",
        "qwen2.5-coder-0.5b-instruct": "1d961463",
        "all-minilm-l6-v2": "82ca36a4",
    }


def test_an_unknown_model_to_fetch_names_the_known_ones() -> None:
    answer = esclusa("models", "fetch", "gpt-9")
    assert answer.returncode == 2
    assert "smollm2-135m-instruct" in answer.stderr


def test_a_misspelt_setting_stops_the_start_with_place_and_nearest_name(tmp_path: Path) -> None:
    file = tmp_path / "esclusa.yaml"
    file.write_text("http:\n  host: 127.0.0.1\n  prot: 9000\n")
    answer = esclusa("serve", "--config", str(file))
    assert answer.returncode == 2
    assert f"{file}:3" in answer.stderr
    assert "`port`" in answer.stderr


def test_serving_without_an_identity_provider_is_refused_with_the_way_out() -> None:
    answer = esclusa("serve")
    assert answer.returncode == 2
    assert "--local" in answer.stderr


@pytest.mark.parametrize("host", ["0.0.0.0", "192.0.2.1", "example.com"])
def test_local_mode_never_listens_beyond_loopback(host: str) -> None:
    answer = esclusa("serve", "--local", "--host", host, "--port", "0")
    assert answer.returncode == 2
    assert "loopback" in answer.stderr
    assert "cannot listen" not in answer.stderr


def test_local_mode_never_binds_an_address_that_it_must_refuse(monkeypatch: pytest.MonkeyPatch) -> None:
    def bound(*_: object) -> None:
        raise AssertionError("a socket was bound before the refusal")

    monkeypatch.setattr(socket.socket, "bind", bound)
    with pytest.raises(ConfigError, match="loopback only"):
        serve.serve(
            local=True, config=None, host="0.0.0.0", port=0, metrics_port=None, data_dir=None, model=[], device=None,
            max_num_seqs=None, max_num_batched_tokens=None, max_model_len=None, gpu_memory_utilization=None,
            enable_prefix_caching=None, tensor_parallel_size=None, quantization=None, threads=None,
            kv_cache_dtype=None,
        )  # fmt: skip


def test_config_show_masks_secrets() -> None:
    answer = esclusa("config", "show", env={"DATABASE_URL": "postgresql+asyncpg://u:hunter2@db/x"})
    assert answer.returncode == 0
    assert "hunter2" not in answer.stdout


def test_doctor_reports_every_check_as_json() -> None:
    answer = esclusa("doctor", "--json")
    rows = {row["check"]: row for row in json.loads(answer.stdout)}
    assert rows["python"]["state"] == "ok"
    assert rows["policy"]["state"] == "ok"
    assert rows["kernels"]["state"] in ("ok", "warn")
    assert all(row["fix"] for row in rows.values() if row["state"] != "ok")


def test_doctor_reads_each_model_file_and_names_the_bad_ones(tmp_path: Path) -> None:
    write_tiny_model(tmp_path / "good")
    write_tiny_model(tmp_path / "cut")
    shard = tmp_path / "cut" / "model.safetensors"
    shard.write_bytes(shard.read_bytes()[:-1000])
    (tmp_path / "empty.gguf").touch()
    paths = {"good": "good", "cut": "cut", "empty": "empty.gguf", "absent": "nowhere.gguf"}
    models = [{"id": name, "path": str(tmp_path / path)} for name, path in paths.items()]
    config = tmp_path / "esclusa.yaml"
    config.write_text(yaml.safe_dump({"models": models}))
    found = {row["check"]: row for row in json.loads(esclusa("doctor", "--json", "--config", str(config)).stdout)}
    assert found["models"]["state"] == "fail"
    assert all(f"{name}: " in found["models"]["found"] for name in ("cut", "empty", "absent"))
    assert "good: " not in found["models"]["found"]
    config.write_text(yaml.safe_dump({"models": models[:1]}))
    found = {row["check"]: row for row in json.loads(esclusa("doctor", "--json", "--config", str(config)).stdout)}
    assert found["models"]["found"] == "good: LlamaForCausalLM, 2 layers, 256 tokens"


def test_doctor_fails_and_names_the_fix_when_the_database_is_away() -> None:
    answer = esclusa("doctor", env={"DATABASE_URL": "postgresql+asyncpg://u:p@127.0.0.1:1/x"})
    assert answer.returncode == 1
    assert "FAIL" in answer.stdout
    assert "DATABASE_URL" in answer.stdout


def test_doctor_tells_of_a_policy_whose_content_no_key_encrypts(tmp_path: Path) -> None:
    policy = tmp_path / "policy.yaml"
    policy.write_text(
        "apiVersion: esclusa/v1\nkind: PolicySet\nmetadata: {name: x}\nroles: {r: {}}\nrules:\n"
        "  - {id: kept, effect: allow, subjects: {roles: [r]}, actions: [chat], models: {ids: [m]},"
        " obligations: {contentLogging: encrypted}}\n"
    )
    named = {"ESCLUSA_ACCESS__POLICY_FILE": str(policy)}
    key = {"ESCLUSA_AUDIT__CONTENT_KEYS": "k1:" + base64.b64encode(b"k" * 32).decode()}
    for env, state in ((named, "fail"), ({**named, **key}, "ok")):
        rows = {row["check"]: row for row in json.loads(esclusa("doctor", "--json", env=env).stdout)}
        assert rows["content"]["state"] == state
    assert key["ESCLUSA_AUDIT__CONTENT_KEYS"][3:] not in str(rows)
