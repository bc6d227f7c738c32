"""Tells when what is called at every step takes too much of it: rule or watchpoint. Plain numbers."""

from __future__ import annotations

from collections import deque
from statistics import median
from typing import Final

SLOW_FRACTION: Final = 0.05
"""What takes more than this share of the step, in the median of `_CALLS` calls, ..."""
SLOW_S: Final = 0.002
"""... and more than this many seconds, is too slow."""
VERY_SLOW_S: Final = 5.0
"""So is that of which a single call takes longer than this."""
_CALLS: Final = 15


class CallTimes:
    """What the newest calls took."""

    def __init__(self) -> None:
        self._taken_s: deque[float] = deque(maxlen=_CALLS)

    def add(self, taken_s: float, step_s: float | None) -> str | None:
        """Note a call; return why it is too slow, None where it is not.

        Args:
            taken_s: seconds that the call took.
            step_s: seconds that the step took, where they are known.
        """
        self._taken_s.append(taken_s)
        if taken_s > VERY_SLOW_S:
            return f"a call of it took {taken_s:.1f} s; at most {VERY_SLOW_S:g} s are allowed"
        if step_s is None or len(self._taken_s) < _CALLS:
            return None
        usual_s = median(self._taken_s)
        if usual_s <= max(SLOW_S, SLOW_FRACTION * step_s):
            return None
        return (
            f"it takes {usual_s * 1e3:.1f} ms of a step of {step_s * 1e3:.1f} ms; at most "
            f"{SLOW_FRACTION:.0%} are allowed"
        )
