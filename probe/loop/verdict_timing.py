"""Whether a step is judged before its update or one step late, and what follows from a late verdict.

A verdict before the update is the last moment at which a replay can work; on a device it waits for all that
is queued there. Used by the training loop and the judge, on the training thread.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from ..attach.watched_model import WatchedModel
from ..compat.host_copy import device_is_idle, waiting_is_an_error
from ..settings.config import ProbeConfig
from .measure_schedule import MeasureSchedule

ARMED_STEPS: Final = 20
"""So many steps after a bad one are judged before their update."""


class VerdictTiming:
    """Decides for each step as it begins.

    Args:
        config: `verdict` is the user's choice; `mode="raise"` cannot be late.
        model: where its parameters are decides `verdict="auto"`.
        schedule: at a level above basic, and during a closer look, nothing is late.

    Attributes:
        is_late: whether the step under way may be judged after its update.
    """

    def __init__(self, config: ProbeConfig, model: WatchedModel, schedule: MeasureSchedule) -> None:
        self.is_late = False
        self._choice, self._model, self._schedule = config.verdict, model, schedule
        self._can_be_late = config.verdict != "before_update" and config.mode != "raise"
        self._not_before = 0

    def begin_step(self, step: int, is_needed: Callable[[], bool]) -> None:
        """Decide for a step.

        Args:
            step: its number.
            is_needed: asks whether a recovery, a rule or what looks at the first steps needs the verdict
                before the update.
        """
        self.is_late = (
            self._can_be_late
            and step >= self._not_before
            and (self._choice == "after_update" or self._model.is_on_cuda)
            and self._schedule.is_basic
            and self._model.tells_of_updates
            and not is_needed()
        )

    @property
    def waits(self) -> bool:
        """Whether what is measured now is read at once: it has to be, or the script has waited itself."""
        if not self.is_late:
            return True
        return self._choice == "auto" and device_is_idle() and not waiting_is_an_error()

    def must_know_now(self) -> None:
        """Something is about to be done with the gradients' norms: this step's verdict cannot be late."""
        self.is_late = False

    def give_up(self) -> None:
        """What was on its way could not be read: wait for all that follows."""
        self._can_be_late = self.is_late = False

    def arm(self, step: int) -> None:
        """Something was found too late at `step`: have the next ones judged before their updates."""
        self._not_before = max(self._not_before, step + 1 + ARMED_STEPS)
        self.is_late = False
