"""Shorter embeddings: the beginning of a vector, for models that were trained so (Matryoshka, arXiv:2205.13147)."""

from __future__ import annotations

import math
from collections.abc import Sequence

from gateway.errors import InvalidRequest
from gateway.flow.values import ModelCard

Vectors = tuple[tuple[float, ...], ...]


def shortened(vectors: Sequence[Sequence[float]], dimensions: int | None, card: ModelCard) -> Vectors:
    """Unit vectors of so many dimensions. Raises `InvalidRequest` for a size that the model was not trained for."""
    whole = tuple(tuple(vector) for vector in vectors)
    if dimensions is None or not whole or dimensions == len(whole[0]):
        return whole
    if dimensions not in card.embedding_dimensions:
        sizes = sorted({*card.embedding_dimensions, len(whole[0])})
        raise InvalidRequest(
            f"The embeddings of this model cannot have {dimensions} dimensions.",
            code="invalid_value",
            param="dimensions",
            hint=f"leave `dimensions` out, or ask for {' or '.join(map(str, sizes))}",
        )
    return tuple([_unit(vector[:dimensions]) for vector in whole])


def _unit(vector: Sequence[float]) -> tuple[float, ...]:
    length = math.sqrt(sum([value * value for value in vector])) or 1.0
    return tuple([value / length for value in vector])
