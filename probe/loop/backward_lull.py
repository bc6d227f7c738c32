"""When a training that C follows computes its parameters' gradients: no lock of Python's is needed then."""

from __future__ import annotations

from collections.abc import Callable

from ..measure.kernels.hot_binding import IN_BACKWARD, MAX_MICRO_STEPS, HotCalls


class BackwardLull:
    """A `Lull`: from when dL/d(output) has come by, the last that C waits for, to the backward's end."""

    def __init__(self, calls: HotCalls) -> None:
        self._state, self._open_calls = calls.state, calls.open_calls
        self._ring: Callable[[], None] | None = None
        """Kept alive for C."""

    @property
    def is_on(self) -> bool:
        """Whether gradients are being computed; from any thread."""
        state = self._state
        if not state.armed or state.state != IN_BACKWARD:
            return False
        # The lock may change hands between two looks: one more backward has ended by now, maybe the last.
        at = state.micro_step
        return at < MAX_MICRO_STEPS and bool(self._open_calls[at].task)

    @property
    def beats(self) -> int:
        """Grows while C follows a training."""
        return int(self._state.beats)

    def call_at_next(self, ring: Callable[[], None] | None) -> None:
        """Have `ring` called once when a backward has come so far; None takes that back."""
        if ring is not None:
            self._ring = ring
        self._state.bell = None if ring is None else id(ring)
