"""One rule of the user's: a function of a finished step, dropped when it fails or is slow."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from statistics import median
from typing import Final, TypeAlias

from ..detectors.base import Finding
from ..guard import Guard
from .episode import RuleEpisode
from .results import as_result
from .step_view import StepView

RuleFunction: TypeAlias = Callable[[StepView], object]
SLOW_FRACTION: Final = 0.05
"""A rule that takes more than this share of the step, in the median of `_CALLS` calls, ..."""
SLOW_S: Final = 0.002
"""... and more than this many seconds, is dropped."""
VERY_SLOW_S: Final = 5.0
"""So is one of which a single call takes longer than this."""
_CALLS: Final = 15


class UserRule:
    """A function and what has come of it so far.

    Attributes:
        name: what events call it.
        dropped: why it is called no more; None while it is.
    """

    def __init__(self, name: str, function: RuleFunction) -> None:
        self.name = name
        self.dropped: str | None = None
        self.episode = RuleEpisode()
        self._function = function
        self._taken_s: deque[float] = deque(maxlen=_CALLS)

    def observe(self, view: StepView, step_s: float | None, guard: Guard) -> Finding | None:
        """Call it with a finished step; `dropped` says afterwards whether that was the last time.

        Args:
            view: the step.
            step_s: seconds that the step took, where they are known.
            guard: counts the time that it takes.
        """
        started_s = time.perf_counter()
        finding, error = guard.attempt(self._call, view)
        taken_s = time.perf_counter() - started_s
        if error is not None:
            self.dropped = f"it raised {type(error).__name__}: {error}"
            return None
        self._taken_s.append(taken_s)
        self._judge_time(taken_s, step_s)
        return finding

    def _call(self, view: StepView) -> Finding | None:
        result = as_result(self._function(view), self.name)
        if result is None:
            return None
        return Finding(
            kind="custom",
            severity=result.severity,
            subject=self.name,
            message=f"{result.message.splitlines()[0]} at step {view.step} (rule {self.name})"
            + "".join(f"\n{line}" for line in result.message.splitlines()[1:]),
            value=result.value,
            threshold=result.threshold,
            affected=result.affected,
        )

    def _judge_time(self, taken_s: float, step_s: float | None) -> None:
        if taken_s > VERY_SLOW_S:
            self.dropped = f"a call of it took {taken_s:.1f} s; at most {VERY_SLOW_S:g} s are allowed"
        elif step_s is not None and len(self._taken_s) == _CALLS:
            usual_s = median(self._taken_s)
            if usual_s > max(SLOW_S, SLOW_FRACTION * step_s):
                self.dropped = (
                    f"it takes {usual_s * 1e3:.1f} ms of a step of {step_s * 1e3:.1f} ms; at most "
                    f"{SLOW_FRACTION:.0%} are allowed"
                )
