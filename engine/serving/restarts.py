"""Restart limit and back-off of an engine that keeps failing. Pure counting."""

from __future__ import annotations

MOST_IN_A_ROW = 8
"""Rebuilds without one request that ended well between them; then the engine has failed for good."""
_FIRST_S, _LONGEST_S = 0.5, 30.0


class Restarts:
    def __init__(self) -> None:
        self._in_a_row = 0

    def next_delay_s(self) -> float | None:
        """Seconds to wait before the rebuild that is due; None when there have been too many. The first is at once."""
        self._in_a_row += 1
        if self._in_a_row > MOST_IN_A_ROW:
            return None
        return 0.0 if self._in_a_row == 1 else min(_LONGEST_S, _FIRST_S * 2.0 ** (self._in_a_row - 2))

    def worked(self) -> None:
        """A request ended well."""
        self._in_a_row = 0
