"""The faults of a quantized checkpoint in words. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from engine.verification.decision import ASYMMETRIC
from engine.verification.report import Finding, MatrixReport


def findings(declared: str, real: str | None, decided_by: str, matrices: Sequence[MatrixReport]) -> Iterator[Finding]:
    """Nothing where all is well."""
    if not matrices:
        yield Finding(
            "no_quantized_matrix",
            "the configuration names a quantized format, but no matrix is stored in it",
            "remove `quantization_config` from config.json, or fetch the checkpoint again",
        )
    elif real is None:
        yield Finding(
            "convention_unknown",
            f"declared: {declared}; no known way to read the weights makes the model know the probe text",
            "an untrained model cannot be told; otherwise fetch the checkpoint again or quantize it anew",
        )
    elif real != declared and real.startswith(ASYMMETRIC):
        yield Finding(
            "convention_mismatch",
            f"declared: symmetric {declared}; the zero points are not all one, the weights are stored as: {real}",
            "set `sym` to false in `quantization_config`, and `checkpoint_format` to the version named here",
        )
    elif real != declared and decided_by == "words":
        yield Finding(
            "convention_mismatch",
            f"declared: {declared}; the stored words are those of: {real}",
            "this engine does not read the zero points of symmetric files and runs it; others will not: "
            "correct `checkpoint_format`",
        )
    elif real != declared:
        yield Finding(
            "convention_mismatch",
            f"declared: {declared}; the weights are stored as: {real}",
            "correct `quantization_config`, or quantize the model anew with `esclusa quantize`",
        )
    for matrix in matrices:
        if matrix.changed:
            yield Finding(
                "words_changed",
                f"{matrix.module}: {', '.join(matrix.changed)} are not the same after unpacking and packing again",
                "codes do not use their words as the format says: quantize the model anew",
            )
        if not matrix.error <= matrix.bound:
            yield Finding(
                "product_differs",
                f"{matrix.module}: the product differs by {matrix.error:.3g} of its norm, {matrix.bound:g} is allowed",
                "a fault of the kernels, not of the file: please report it with this output",
            )
