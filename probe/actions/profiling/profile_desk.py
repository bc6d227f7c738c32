"""Takes requests for profiles of one session. Light: in every run.

What records and reads a profile is loaded with the first one (`step_profiler.py`, `profiled_block.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from torch import nn

from ...compat.weak_tables import WeakTable
from .profile_parts import ProfileParts

if TYPE_CHECKING:
    from .step_profiler import StepProfiler

DEFAULT_STEPS: Final = 5
"""Steps of a profile where nobody says how many."""
_desks: WeakTable[ProfileDesk, None] = WeakTable()


def running_desks() -> list[ProfileDesk]:
    """Those of the sessions that are recording."""
    return [desk for desk in _desks if desk.is_open]


class ProfileDesk:
    """Profiles of one session.

    Args:
        parts: of the session.
        is_off: whether nothing is followed at present.
        ask_for_a_look: has the next step go the slow way.
    """

    def __init__(
        self, parts: ProfileParts, *, is_off: Callable[[], bool], ask_for_a_look: Callable[[], None]
    ) -> None:
        self.parts = parts
        self._is_off, self._ask_for_a_look = is_off, ask_for_a_look
        self._profiler: StepProfiler | None = None
        _desks[self] = None
        parts.hooks.stop.add(self.stop)

    @property
    def is_open(self) -> bool:
        """Whether the session records."""
        return self.parts.recorder.is_open

    @property
    def root(self) -> nn.Module:
        """The naming root."""
        return self.parts.model.root

    @property
    def is_profiling(self) -> bool:
        """Whether steps are profiled, or about to be; from any thread."""
        return self._profiler is not None and self._profiler.is_busy

    def ask(self, steps: int, by: str) -> None:
        """Have the next steps profiled, from the end of the one under way. From any thread.

        Args:
            steps: how many, 1 to `MAX_STEPS`.
            by: who asks, for the event.

        Raises:
            ValueError: the number is out of range, a profile is being taken already, or nothing is followed.
        """
        from ...wire.profiles import MAX_STEPS

        if isinstance(steps, bool) or not isinstance(steps, int) or not 1 <= steps <= MAX_STEPS:
            raise ValueError(f"steps={steps!r} must be a whole number from 1 to {MAX_STEPS}")
        if self._is_off():
            raise ValueError("level `off` records no steps: raise the level, then profile")
        if self._profiler is None:
            from .step_profiler import StepProfiler

            self._profiler = StepProfiler(self.parts)
        self._profiler.ask(steps, by)
        self._ask_for_a_look()

    def mark_block(self) -> Callable[[], None]:
        """A block is profiled from now on; returns what says that it has ended."""
        self.parts.marks.begin()
        self._ask_for_a_look()
        return self.parts.marks.end

    def stop(self) -> None:
        """The session ends: so does a profile."""
        if self._profiler is not None:
            self._profiler.stop()
