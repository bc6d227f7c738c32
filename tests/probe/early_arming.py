"""Has C follow the steps of short trainings: as early as can be, or never, with all else the same.

The product waits for equal steps, and for the looks at a model's first steps to end. Here one step is enough,
and these looks end with it, whether C follows steps or not: two runs differ in that alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from probe.loop import budget, fast_path, sample_judge
from probe.loop.armed_loop import FollowedSteps
from probe.loop.early_watch import EarlyWatch
from probe.loop.followed_training import FollowedTraining
from probe.measure.kernels import hot_binding
from probe.settings.levels import Settings


class Followed:
    """What C has followed.

    Attributes:
        steps: how many, those included whose forward it has followed and whose rest has gone the slow way.
    """

    def __init__(self) -> None:
        self.steps = 0

    def count(self, patch: pytest.MonkeyPatch) -> None:
        """Be told by every session."""
        take_back, adopt_forward = FollowedTraining.take_back, FollowedTraining.adopt_forward

        def counted(training: FollowedTraining, account: FollowedSteps) -> None:
            self.steps += account.finished
            take_back(training, account)

        def adopted(training: FollowedTraining, *args: Any, **kwargs: Any) -> None:
            self.steps += 1
            adopt_forward(training, *args, **kwargs)

        patch.setattr(FollowedTraining, "take_back", counted)
        patch.setattr(FollowedTraining, "adopt_forward", adopted)


@contextmanager
def early_arming(*, in_c: bool, at_once: bool = True) -> Iterator[Followed]:
    """Have C follow all steps that it can from the third on, or none.

    Args:
        in_c: whether C follows any.
        at_once: after one equal step; else after as many as in the product, once the first looks have ended.
    """
    patch, followed = pytest.MonkeyPatch(), Followed()
    # What is measured must not depend on how long it takes.
    patch.setattr(Settings, "limit", 0.0)
    if at_once:
        patch.setattr(fast_path, "ARMED_AFTER", 1)
        patch.setattr(fast_path, "_LONGEST_WAIT", 1)
    patch.setattr(budget, "_EARLY_STEPS", frozenset({0}))
    # Which steps the detectors of samples see must not depend on the clock.
    patch.setattr(sample_judge, "_AT_LEAST_EVERY_S", math.inf)
    patch.setattr(EarlyWatch, "note_step", _once(EarlyWatch.note_step))
    followed.count(patch)
    if not in_c:
        never = hot_binding.HotStatus(None, "not in this test")
        patch.setattr(fast_path.hot_binding, "status", lambda: never)
    try:
        yield followed
    finally:
        patch.undo()


def _once(note_step: Callable[..., None]) -> Callable[..., None]:
    """`EarlyWatch.note_step`, after which nothing more is looked at."""

    def noted(early: EarlyWatch, *args: Any) -> None:
        note_step(early, *args)
        of_partials = [call for _, call in early._clear]
        for hook in early._hooks._of_steps:
            for call in hook.calls:
                if getattr(call, "__self__", None) in (early, early._labels) or call in of_partials:
                    hook.remove(call)

    return noted
