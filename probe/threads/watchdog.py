"""Decides when a training stands still: signs of life in, a beginning and an end out. Pure; no clock, no I/O.

The training thread leaves signs of life in `pulse`, one addition each and no lock. The recorder's thread
reads them every 50 ms and asks its session's `Watchdog`. Where the training stands, `whereabouts.py` says.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from statistics import median
from threading import get_ident
from typing import Any, Final

import msgspec

DEFAULT_HANG_S: Final = 5.0
STEPS_PER_HANG: Final = 30.0
"""A standstill is at least this many median steps long."""
PATIENCE: Final = 12.0
"""Where a script may well do other work for long (evaluation, a checkpoint), this many times as long."""
IDLE_FRACTION: Final = 0.1
"""A process that takes less than this share of one core of CPU time is waiting, not working."""
_STEPS_KEPT: Final = 63
_ARMED_AFTER: Final = 2
"""Finished steps; before, everything is compiled, loaded and allocated for the first time."""
_OWN_GAP_S: Final = 1.0
"""When nobody has asked for this long, the asking thread itself stood still: nobody's hang of ours."""


class Pulse:
    """Signs of life of this process's training, whichever session they are of."""

    __slots__ = ("beats", "evaluations", "in_c", "owner")

    def __init__(self) -> None:
        self.in_c: Callable[[], int] = lambda: 0
        """How many more of them C has seen."""
        self.beats = 0
        """Beginnings and ends of forwards, backwards and updates."""
        self.evaluations = 0
        """Calls of watched models with gradients switched off."""
        self.owner: object | None = None
        """The session that made the newest backward."""

    @property
    def count(self) -> int:
        """All signs of life."""
        return self.beats + self.in_c()


pulse: Final = Pulse()
"""Of this process: every session's training shares it, so that one trains while another is done."""


class LoopMark:
    """Where one session's training loop is: the stack at the end of a backward, renewed when asked for."""

    __slots__ = ("stack", "thread", "wanted")

    def __init__(self) -> None:
        self.wanted = True
        self.thread = 0
        self.stack: Any = None
        """What `take` got; None before the first backward."""

    def take(self, stack: Any) -> None:
        """Note the stack of the calling thread, which is the one that trains."""
        self.thread, self.stack, self.wanted = get_ident(), stack, False


class Standstill(msgspec.Struct, frozen=True, kw_only=True):
    """How long nothing has happened, and what is usual."""

    idle_s: float
    """Since the last sign of life."""
    limit_s: float
    """What is a hang in the midst of a step."""
    step_s: float
    """Median time of a step."""
    is_evaluating: bool
    """The last sign of life was a call with gradients switched off."""
    is_working: bool
    """The process has been taking CPU time meanwhile."""

    @property
    def is_long_for_other_work(self) -> bool:
        """Whether it is a hang where a script may do other work: a long wait, with nothing computed."""
        return self.idle_s >= PATIENCE * self.limit_s and not self.is_working


class Watchdog:
    """Follows the signs of life of one session.

    Args:
        hang_s: shortest standstill that is a hang, in seconds.
    """

    def __init__(self, *, hang_s: float = DEFAULT_HANG_S) -> None:
        self._hang_s = hang_s
        self._signs = (0, 0)
        self._alive_at: float | None = None
        self._sign_at = 0.0
        self._asked_at = 0.0
        self._cpu_at_sign = self._cpu_now = 0.0
        self._is_evaluating = False
        self._step: int | None = None
        self._stepped_at = 0.0
        self._finished = 0
        self._step_times: deque[float] = deque(maxlen=_STEPS_KEPT)

    def note(
        self,
        now_s: float,
        *,
        beats: int,
        evaluations: int,
        step: int | None,
        cpu_s: float,
        is_own: bool = False,
    ) -> bool:
        """Take in what the pulse says; whether there was a sign of life since the last call.

        Args:
            now_s: seconds of a clock that never goes back.
            beats: `Pulse.beats`.
            evaluations: `Pulse.evaluations`.
            step: number of the session's newest finished step; None before the first.
            cpu_s: CPU time that the process has taken so far, in seconds.
            is_own: whether the probe's own code runs on the training thread: that is no standstill of the
                script, unless it does not end; nor is it a sign of life of one that stands still.
        """
        was_away = self._alive_at is not None and now_s - self._asked_at > _OWN_GAP_S
        has_sign = (beats, evaluations) != self._signs or self._alive_at is None or was_away
        self._sign_at = now_s if has_sign else self._sign_at
        is_brief = is_own and self.standstill is None and now_s - self._sign_at < PATIENCE * self.limit_s
        is_alive = has_sign or is_brief
        if is_alive:
            if beats != self._signs[0]:
                self._is_evaluating = False
            elif evaluations != self._signs[1]:
                self._is_evaluating = True
            self._signs = beats, evaluations
            self._alive_at, self._cpu_at_sign = now_s, cpu_s
        self._asked_at, self._cpu_now = now_s, cpu_s
        if step != self._step:
            self._note_step(now_s, step)
        return is_alive

    def _note_step(self, now_s: float, step: int | None) -> None:
        before = -1 if self._step is None else self._step
        advanced = 1 if step is None else max(step - before, 1)
        if self._finished:
            # Between two questions there may be many steps, and each of them counts.
            mean_s = (now_s - self._stepped_at) / advanced
            self._step_times.extend([mean_s] * min(advanced, _STEPS_KEPT))
        self._finished += advanced
        self._step, self._stepped_at = step, now_s

    @property
    def is_armed(self) -> bool:
        """Whether enough steps are finished to know what is usual."""
        return self._finished >= _ARMED_AFTER

    @property
    def is_evaluating(self) -> bool:
        """Whether the last sign of life was a call with gradients switched off."""
        return self._is_evaluating

    @property
    def step_s(self) -> float:
        """Median time of the newest steps; 0 before there are any."""
        return median(self._step_times) if self._step_times else 0.0

    @property
    def limit_s(self) -> float:
        """What is a hang in the midst of a step."""
        return max(self._hang_s, STEPS_PER_HANG * self.step_s)

    @property
    def standstill(self) -> Standstill | None:
        """What has been going on since the last sign of life, once that is too long for a step."""
        if not self.is_armed or self._alive_at is None:
            return None
        idle_s = self._asked_at - self._alive_at
        if idle_s < self._hang_s or idle_s < self.limit_s:
            return None
        return Standstill(
            idle_s=idle_s,
            limit_s=self.limit_s,
            step_s=self.step_s,
            is_evaluating=self._is_evaluating,
            is_working=self._cpu_now - self._cpu_at_sign > IDLE_FRACTION * idle_s,
        )
