"""Adds up what the phases of a step take: waiting for data, forward, backward, the optimizer's step.

All that lies between two frames counts to the second of them; what is in none of the phases (the loss,
logging, an evaluation) is the rest. The sums lie in memory that C writes as well while it follows the steps:
see `hot_phases.h`. Times are those of the host, also where the device goes on by itself. On the training
thread.
"""

from __future__ import annotations

import threading
import time
from array import array
from collections.abc import Callable
from typing import Final

from ..attach.loader_waits import BATCHES, WAITED_NS, loader_waits
from ..guard import Guard

DATA, FORWARD, BACKWARD, UPDATE, OPEN, BEGAN_NS, SUM_BEFORE, SEEN_WAITED_NS, SEEN_BATCHES = range(9)
"""Mirrored by `hot_phases.h`: sums in ns, or `ABSENT`; which phase is under way, since when, and what its
sum was before; how much of the thread's waits is counted."""
ABSENT: Final = -1
NAMES: Final = ("data_wait_s", "forward_s", "backward_s", "optimizer_s")
"""Of the sums, under the names of `wire.SCALARS`."""
_NONE: Final = (ABSENT, ABSENT, ABSENT, ABSENT, 0, 0, 0)


class PhaseTimes:
    """One session's.

    Args:
        guard: adds up what the probe takes: none of a phase.
        now_ns: the clock.

    Attributes:
        shared: (9,) what is known of the step under way; never another object.
    """

    def __init__(self, guard: Guard, now_ns: Callable[[], int] = time.perf_counter_ns) -> None:
        self._guard, self._now_ns = guard, now_ns
        self.shared: Final = array("q", (*_NONE, 0, 0))
        self.waits: array[int] | None = None
        """The cell of the thread that trains; None before the first forward."""
        self._thread = 0
        self._own_ns = 0
        """What the probe had taken when the phase under way began."""
        self._outer: tuple[int, int] | None = None
        """Of an optimizer's step that calls a closure, while a forward or backward of that is under way: when
        it began, and what the probe had taken by then."""
        self._unsure = [0, 0]
        """Waits and forwards in evaluation mode, with gradients: of a step, if a backward follows."""
        self._is_unsure = False

    def begin_forward(self, *, is_training: bool) -> None:
        """The model's outermost forward begins."""
        if threading.get_ident() != self._thread:
            self._follow_thread()
        self._is_unsure = not is_training
        if is_training:
            self._unsure[:] = 0, 0
            self._take_waits()
        self._begin(FORWARD)

    def end_forward(self) -> None:
        """It has returned."""
        is_unsure = self._is_unsure and self.shared[OPEN] == FORWARD
        if is_unsure:
            self._unsure[0] += self._waited()
        taken_ns = self._end(FORWARD)
        if taken_ns is not None and is_unsure:
            self._unsure[1] += taken_ns
        elif taken_ns is not None:
            self._add(FORWARD, taken_ns)

    def begin_backward(self) -> None:
        """A backward of the step begins."""
        waited_ns, forward_ns = self._unsure
        if forward_ns:
            self._unsure[:] = 0, 0
            self._add(FORWARD, forward_ns)
            if waited_ns:
                self._add(DATA, waited_ns)
        self._take_waits()
        self._begin(BACKWARD)

    def end_backward(self) -> None:
        """It has returned; nothing where none of the step's has begun."""
        taken_ns = self._end(BACKWARD)
        if taken_ns is not None:
            self._add(BACKWARD, taken_ns)

    def begin_update(self) -> None:
        """The optimizer is about to update."""
        self._outer = None
        self._begin(UPDATE)

    def end_update(self) -> None:
        """It has; a closure's forwards and backwards in between are no part of it."""
        taken_ns = self._end(UPDATE)
        if taken_ns is not None:
            self._add(UPDATE, taken_ns)

    def take_back_backward(self) -> None:
        """The one that has just returned was another model's."""
        self.shared[BACKWARD] = self.shared[SUM_BEFORE]

    def note_evaluation(self) -> None:
        """The model is called to be evaluated: what its batches were waited for is no part of the step."""
        self._waited()
        self._unsure[:] = 0, 0

    def adopt(self) -> None:
        """Go on with the phase that C has seen begin."""
        # All of the guarded call that hands it over is the probe's.
        self._own_ns = self._guard.spent_ns

    def take(self) -> dict[str, float]:
        """A step has ended: return the seconds of those phases that are known, and begin the next one."""
        self._take_waits()
        sums = self.shared[: len(NAMES)]
        self.forget()
        return {name: ns / 1e9 for name, ns in zip(NAMES, sums, strict=True) if ns != ABSENT}

    def forget(self) -> None:
        """Begin anew: steps pass that nobody times."""
        self._waited()
        self._outer, self._unsure[:] = None, (0, 0)
        self.shared[: len(_NONE)] = array("q", _NONE)

    # -- parts

    def _follow_thread(self) -> None:
        self._thread, self.waits = threading.get_ident(), loader_waits.of_this_thread()
        self._waited()

    def _waited(self) -> int:
        """Nanoseconds that were waited for batches since the last time."""
        waits, shared = self.waits, self.shared
        if waits is None:
            return 0
        waited_ns = waits[WAITED_NS] - shared[SEEN_WAITED_NS]
        shared[SEEN_WAITED_NS], shared[SEEN_BATCHES] = waits[WAITED_NS], waits[BATCHES]
        return waited_ns

    def _take_waits(self) -> None:
        if self.waits is not None and self.waits[BATCHES] != self.shared[SEEN_BATCHES]:
            self._add(DATA, self._waited())

    def _add(self, phase: int, ns: int) -> None:
        self.shared[phase] = max(self.shared[phase], 0) + ns

    def _begin(self, phase: int) -> None:
        shared = self.shared
        if shared[OPEN] == UPDATE and phase != UPDATE:
            self._outer = shared[BEGAN_NS], self._own_ns
        shared[OPEN], shared[SUM_BEFORE] = phase, shared[phase]
        self._own_ns = self._guard.spent_so_far_ns()
        shared[BEGAN_NS] = self._now_ns()

    def _end(self, phase: int) -> int | None:
        """Close a phase; returns what it has taken without the probe, None where it is not under way."""
        if self.shared[OPEN] != phase:
            return None
        # Batches that were loaded meanwhile are a part of it: by a closure, say.
        self._waited()
        now_ns, own_ns = self._now_ns(), self._guard.spent_so_far_ns() - self._own_ns
        taken_ns = max(now_ns - self.shared[BEGAN_NS] - own_ns, 0)
        self._close(taken_ns)
        return taken_ns

    def _close(self, taken_ns: int) -> None:
        """Go on with the optimizer's step that the phase was in, as if that had begun so much later."""
        shared = self.shared
        outer, self._outer = self._outer, None
        shared[OPEN] = 0 if outer is None else UPDATE
        if outer is not None:
            shared[BEGAN_NS], self._own_ns = outer[0] + taken_ns, outer[1]
