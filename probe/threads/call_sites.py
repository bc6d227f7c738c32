"""The stack of a call that is made over and over from the same lines, at the cost of two frames.

Used by the capture on the training thread: of a known line only the innermost frames of the script are looked
at, and what is outside of them is completed when the stack is shown (`rejoined`).
"""

from __future__ import annotations

import sys
from typing import Final

from .stacks import RawFrame, inner_torch_removed, raw_stack

_MAX_SITES: Final = 64
_MAX_DEPTH: Final = 256


class CallSites:
    """Lines of the script that call us, each with its stack as it was when it was first met.

    A line is told from others by itself and by the line that called its function.

    Args:
        limit: frames kept of each; the innermost ones stay.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        # By identity, kept alive by the stack itself: equal code may come from different files.
        self._known: dict[tuple[int, int, int, int], list[RawFrame]] = {}
        self._depth = 0

    def take(self) -> list[RawFrame]:
        """Return the caller's stack, outermost first, without the probe's and torch's frames inside."""
        try:
            frame = sys._getframe(self._depth + 1)
        except ValueError:
            return self._take_anew()
        outer = frame.f_back
        outer_code, outer_offset = (None, 0) if outer is None else (outer.f_code, outer.f_lasti)
        known = self._known.get((id(frame.f_code), frame.f_lasti, id(outer_code), outer_offset))
        return self._take_anew() if known is None else known

    def _take_anew(self) -> list[RawFrame]:
        whole = raw_stack(sys._getframe(2), limit=_MAX_DEPTH)
        site = inner_torch_removed(whole)
        self._depth = len(whole) - len(site)
        if len(self._known) >= _MAX_SITES:
            self._known.clear()
        kept = site[-self._limit :]
        if kept:
            code, offset = kept[-1]
            outer_code, outer_offset = kept[-2] if len(kept) > 1 else (None, 0)
            self._known[id(code), offset, id(outer_code), outer_offset] = kept
        return kept


def rejoined(site: list[RawFrame], now: list[RawFrame]) -> list[RawFrame]:
    """Put a call's own frames on top of those that it still shares with the stack of now.

    Args:
        site: a stack of earlier in the same step; outermost frame first, its outer end may be old or cut.
        now: the present one of the same thread, from which that call was made too.
    """
    places = {id(code): place for place, (code, _) in enumerate(site)}
    for place in range(len(now) - 1, -1, -1):
        shared = places.get(id(now[place][0]))
        if shared is not None:
            return now[:place] + site[shared:]
    return site
