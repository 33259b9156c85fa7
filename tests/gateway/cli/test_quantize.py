"""`esclusa quantize` from the outside: a checkpoint, its perplexities, and refusals that name the fix."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from engine import check_model
from tests.fakes.tiny_model import write_tiny_model


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tiny")
    write_tiny_model(path, hidden_size=64, intermediate_size=128, num_attention_heads=4, num_key_value_heads=2)
    return path


def esclusa(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "gateway.cli.main", "quantize", *arguments]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=200, check=False)


def test_a_checkpoint_is_written_and_measured_before_and_after(model: Path, tmp_path: Path) -> None:
    done = esclusa(str(model), "--to", "int8", "--out", str(tmp_path / "out"), "--json")
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert said["perplexity"]["after"] == pytest.approx(said["perplexity"]["before"], rel=0.05)
    assert said["bytes_after"] < said["bytes_before"]
    assert "LlamaForCausalLM" in check_model(str(tmp_path / "out"))


def test_a_text_is_calibrated_on(model: Path, tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("The keeper walked along the lock and looked at the water from both ends. " * 20)
    arguments = (
        "--to",
        "gptq",
        "--calibration",
        str(text),
        "--windows",
        "2",
        "--window-tokens",
        "64",
        "--no-perplexity",
    )
    done = esclusa(str(model), *arguments, "--out", str(tmp_path / "out"))
    assert done.returncode == 0, done.stderr
    assert "MiB" in done.stdout
    assert "layers: 2 of 2" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--to", "nf4"), "must be one of"),
        (("--to", "awq", "--calibration", "absent.txt"), "calibration text cannot be read"),
        (("--to", "awq", "--bits", "8"), "awq has 4 bits"),
    ],
)
def test_what_does_not_go_is_said_without_a_traceback(
    model: Path, tmp_path: Path, arguments: tuple[str, ...], said: str
) -> None:
    done = esclusa(str(model), *arguments, "--out", str(tmp_path / "out"))
    assert done.returncode == 1
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "out").exists()
