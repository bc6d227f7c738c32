"""From how much memory on the leak watch looks at the heap again. Numbers only; on the training thread."""

from __future__ import annotations

from typing import Final

from ..detectors.memory import Growth

_REGROWTH_BYTES: Final = 4.0 * 2**20
_REGROWTH_OBJECTS: Final = 200_000.0


class LookBars:
    """Bars for the host's heap, a device and Python's objects.

    Attributes:
        of: bytes, of `objects` their number, from which on looks are taken.
    """

    def __init__(self) -> None:
        self.of = {"host": 0.0, "device": 0.0, "objects": 0.0}
        self._regrowth = {"host": _REGROWTH_BYTES, "device": _REGROWTH_BYTES, "objects": _REGROWTH_OBJECTS}
        """What grows before looks that have found nothing are repeated; twice as much every time."""

    def are_passed(self, place: str, growth: Growth | None) -> bool:
        """Whether growth goes on, and has come to the bar."""
        return growth is not None and growth.keeps_pace and growth.value >= self.of[place]

    def raise_to(self, place: str, value: float, left: float | None, objects: Growth | None) -> None:
        """Have looks taken again after some growth.

        Args:
            place: that was looked for.
            value: bytes now.
            left: bytes that a container which grows has to get before it is a leak; None: there is none.
            objects: growth of their number.
        """
        if left is None:
            self.of[place] = value + self._regrowth[place]
            self._regrowth[place] *= 2
        else:
            # It is followed by its name until then.
            self.of[place] = value + left + _REGROWTH_BYTES
        if objects is not None:
            self.of["objects"] = objects.value + self._regrowth["objects"]
            self._regrowth["objects"] *= 2

    def double(self, place: str, value: float) -> None:
        """After a leak was found: it is known, and goes on."""
        self.of[place] = 2 * value
        self.of["objects"] *= 2
