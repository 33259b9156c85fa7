"""Regular expressions over module names that come with a checkpoint, and so from anybody."""

from __future__ import annotations

import re

from engine.errors import UnsupportedModel, WeightsMismatch

_MAX_LENGTH = 200
_MAX_REPEATS = 4


def safe_pattern(pattern: str) -> re.Pattern[str]:
    """Raises UnsupportedModel for a pattern that may take hours on a short name (a repeat of a repeat, or many of
    them), WeightsMismatch for one that is none."""
    if (
        len(pattern) > _MAX_LENGTH
        or len(re.findall(r"[*+?{]", pattern)) > _MAX_REPEATS
        or re.search(r"\)[*+?{]", pattern)
    ):
        raise UnsupportedModel(
            f"the pattern {pattern[:60]!r} of the configuration repeats too much to be matched safely"
        )
    try:
        return re.compile(pattern)
    except re.error as error:
        raise WeightsMismatch(f"{pattern[:60]!r} of the configuration is no regular expression") from error
