"""The table of GGUF encodings against the `gguf` package and the page that lists them."""

from __future__ import annotations

import re
from pathlib import Path

import gguf
import pytest

from kernels.gguf_formats import BLOCKS, BY_ID, FORMATS, UNREAD, GgufFormat

MODELS_PAGE = Path(__file__).parents[2] / "docs/concepts/models.md"


@pytest.mark.parametrize("form", FORMATS.values(), ids=FORMATS)
def test_a_row_has_the_number_and_the_sizes_of_the_gguf_package(form: GgufFormat) -> None:
    kind = gguf.GGMLQuantizationType(form.id)
    assert kind.name == form.name
    assert gguf.GGML_QUANT_SIZES[kind] == (form.elements, form.nbytes)


def test_an_encoding_is_plain_or_has_a_reader_and_is_not_called_unread() -> None:
    assert all((form.dtype is None) != (form.read is None) for form in FORMATS.values())
    assert all(form.elements % form.group == 0 and form.bits in (4, 8) for form in BLOCKS.values())
    assert not set(BY_ID) & set(UNREAD)


def test_the_page_of_models_lists_every_encoding() -> None:
    (listed,) = re.findall(r"one GGUF file \(([^)]*)\)", MODELS_PAGE.read_text("utf-8"))
    assert set(re.split(r",\s+", listed)) == set(FORMATS)
