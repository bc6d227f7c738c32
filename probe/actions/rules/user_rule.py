"""One rule of the user's: a function of a finished step, dropped when it fails or is slow."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeAlias

from ...detectors.base import Finding
from ...guard import Guard
from .call_times import CallTimes
from .episode import RuleEpisode
from .rule_results import as_result, as_text
from .step_view import StepView

RuleFunction: TypeAlias = Callable[[StepView], object]


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
        self._times = CallTimes()

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
            self.dropped = f"it raised {type(error).__name__}: {as_text(error)}"
            return None
        self.dropped = self._times.add(taken_s, step_s)
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
