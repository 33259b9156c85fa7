"""Every known way to store a quantized format otherwise than declared is found, and named."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from engine import InvalidInput, QuantizeRequest, VerifyReport, quantize_model, verify_model
from engine.verification.probe import TEXT, TOKENS
from tests.fakes.demo_models import SMALL, demo_model
from tests.fixtures.misread import MISREAD, V1, Misread
from tests.fixtures.quantized import LAYOUTS, Geometry, Layout, awq, gptq, write_layout, write_seeded, write_trained

GEOMETRY = Geometry(group=32, tile=(32, 32))


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One trained model in all layouts, by their names, beside the dense `trained`."""
    root = tmp_path_factory.mktemp("quantized")
    write_trained(root / "trained", TEXT, TOKENS)
    for name, layout in LAYOUTS.items():
        write_layout(layout, root / "trained", root / name, GEOMETRY)
    return root


def verified(path: Path) -> VerifyReport:
    return verify_model(str(path), lambda *_: None)


def mutated(case: Misread, models: Path, to: Path) -> Path:
    shutil.copytree(models / case.layout, to)
    tensors, config = load_file(to / "model.safetensors"), json.loads((to / "config.json").read_text(encoding="utf-8"))
    case.change(tensors, config["quantization_config"])
    save_file(tensors, to / "model.safetensors", metadata={"format": "pt"})
    (to / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return to


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_right_file_is_what_it_says(layout: str, models: Path) -> None:
    report = verified(models / layout)
    assert report.findings == ()
    assert report.real == report.declared
    assert len(report.matrices) == 14
    assert all(matrix.good and matrix.error > 0 for matrix in report.matrices)


def test_every_file_stored_in_another_way_is_found_and_named(models: Path, tmp_path: Path) -> None:
    missed = {}
    for number, case in enumerate(MISREAD):
        report = verified(mutated(case, models, tmp_path / str(number)))
        codes = [finding.code for finding in report.findings]
        if report.real != case.real or "convention_mismatch" not in codes:
            missed[f"{case.layout}: {case.real}"] = (report.real, report.decided_by)
    assert not missed
    assert Counter(case.layout for case in MISREAD).keys() == LAYOUTS.keys()


@pytest.mark.parametrize(
    ("layout", "real"), [(awq(symmetric=True), "awq, symmetric"), (gptq(symmetric=True), "gptq, symmetric")]
)
def test_zero_points_that_mean_nothing_are_found(layout: Layout, real: str, models: Path, tmp_path: Path) -> None:
    write_layout(layout, models / "trained", tmp_path / "model", GEOMETRY)

    def no_zero_points(tensors: dict[str, torch.Tensor], config: dict[str, object]) -> None:
        config["sym"] = False
        for name, tensor in tensors.items():
            if name.endswith("qzeros"):
                tensor.zero_()

    case = Misread("model", real, no_zero_points)
    assert verified(mutated(case, tmp_path, tmp_path / "changed")).real == real


def test_weights_tell_zero_points_of_a_model_that_knows_no_text(tmp_path: Path) -> None:
    source = write_seeded(tmp_path / "seeded")
    folder = write_layout(LAYOUTS["gptq-v1-asym"], source, tmp_path / "model", Geometry())
    assert (verified(folder).real, verified(folder).findings[0].code) == (None, "convention_unknown")
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    config["quantization_config"]["checkpoint_format"] = "gptq_v2"
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    report = verified(folder)
    assert (report.real, report.decided_by) == (V1, "weights")


def test_a_tensor_that_is_not_what_its_matrix_says_is_found(models: Path, tmp_path: Path) -> None:

    def other_shape(tensors: dict[str, torch.Tensor], config: dict[str, object]) -> None:
        tensors["model.layers.0.mlp.up_proj.weight_shape"] += 1

    changed = verified(mutated(Misread("ct-w4a16-sym", "", other_shape), models, tmp_path / "model"))
    assert [(matrix.module, matrix.changed) for matrix in changed.matrices if not matrix.good] == [
        ("model.layers.0.mlp.up_proj", ("weight_shape",))
    ]
    assert [finding.code for finding in changed.findings] == ["words_changed"]


def test_a_wrong_product_is_found(models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from kernels.cpu import linear

    right = linear.linear
    monkeypatch.setattr(linear, "linear", lambda *args, **options: right(*args, **options) * 1.05)
    findings = verified(models / "awq").findings
    assert {finding.code for finding in findings} == {"product_differs"}


def test_the_hash_is_that_of_the_numbers_and_not_of_their_layout(models: Path) -> None:
    v1, v2 = (verified(models / f"gptq-{version}-sym").weights_sha256 for version in ("v1", "v2"))
    assert v1 == v2 != verified(models / "gptq-v1-act").weights_sha256


@pytest.mark.parametrize("name", ["trained", "awq-dense"])
def test_a_model_that_is_not_quantized_is_refused(name: str, models: Path) -> None:
    with pytest.raises(InvalidInput, match="not stored as AWQ"):
        verified(models / name)


@pytest.mark.models
def test_a_real_model_is_told_by_orders_of_magnitude(tmp_path: Path) -> None:
    request = QuantizeRequest(str(demo_model(SMALL)), "fp8", tmp_path / "right")
    quantize_model(request, lambda *_: None)
    case = next(case for case in MISREAD if case.real == "fp8, tiles of scales shifted by 1")
    report = verified(mutated(Misread("right", case.real, case.change), tmp_path, tmp_path / "shifted"))
    losses = {convention.name: convention.loss for convention in report.conventions}
    assert (report.real, report.decided_by) == (case.real, "text")
    assert losses.pop(case.real) < 2.5
    assert min(losses.values()) > 8
    assert {finding.code for finding in report.findings} == {"convention_mismatch"}
