"""Obligations of all matched grants, merged to the strictest. Pure.

Strictest means: the smallest output, the strongest guardrail and redaction, the fullest evidence (`encrypted` over
`none`), the least precedence. Two different localities cannot both be honored; the evaluator refuses then.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeVar

from gateway.access.document.model import ObligationSpec
from gateway.access.document.vocabulary import (
    CACHED_TOKENS_ORDER,
    GUARDRAIL_ORDER,
    LOGGING_ORDER,
    PREFIX_CACHE_ORDER,
    REDACTION_ORDER,
)
from gateway.flow.values import Obligations

NOTHING = Obligations()
T = TypeVar("T")


def merge_obligations(specs: Iterable[ObligationSpec | None]) -> tuple[Obligations, frozenset[str]]:
    """The merged obligations and every locality that was asked for."""
    written = [spec for spec in specs if spec is not None]
    if not written:
        return NOTHING, frozenset()
    localities = frozenset(spec.require_locality for spec in written if spec.require_locality is not None)
    caps = [spec.max_output_tokens for spec in written if spec.max_output_tokens is not None]
    weights = [spec.share_weight for spec in written if spec.share_weight is not None]
    priorities = [spec.priority for spec in written if spec.priority is not None]
    merged = Obligations(
        max_output_tokens=min(caps, default=None),
        content_logging=_strongest(LOGGING_ORDER, [spec.content_logging for spec in written], NOTHING.content_logging),
        redaction=_strongest(REDACTION_ORDER, [spec.redaction for spec in written], NOTHING.redaction),
        guardrails=_strongest(GUARDRAIL_ORDER, [spec.guardrails for spec in written], NOTHING.guardrails),
        require_locality=min(localities, default=None),
        prefix_cache=_strongest(PREFIX_CACHE_ORDER, [spec.prefix_cache for spec in written], NOTHING.prefix_cache),
        cached_tokens=_strongest(CACHED_TOKENS_ORDER, [spec.cached_tokens for spec in written], NOTHING.cached_tokens),
        priority=max(priorities, default=NOTHING.priority),
        share_weight=min(weights, default=NOTHING.share_weight),
    )
    return merged, localities


def _strongest(order: Sequence[T], stated: Sequence[T | None], default: T) -> T:
    ranks = [order.index(value) for value in stated if value is not None]
    return order[max(ranks)] if ranks else default
