"""Which non-finite values something holds, and what they are called. Pure; knows nothing of torch."""

from __future__ import annotations

from enum import IntFlag
from typing import Final

EITHER_KIND: Final = "NaN or Inf"
"""What an origin made that made both, or of which it is not known."""


class Kinds(IntFlag):
    """Which non-finite values a tensor holds; empty for a finite one."""

    NONE = 0
    NAN = 1
    POSITIVE_INFINITY = 2
    NEGATIVE_INFINITY = 4

    @property
    def coarse(self) -> tuple[bool, bool]:
        """(holds NaN, holds an infinity): what an op can create; the sign of an infinity may just flip."""
        infinite = Kinds.POSITIVE_INFINITY | Kinds.NEGATIVE_INFINITY
        return bool(self & Kinds.NAN), bool(self & infinite)

    @property
    def words(self) -> str:
        """ "NaN", "Inf" or `EITHER_KIND`."""
        nan, infinite = self.coarse
        return (EITHER_KIND if nan else "Inf") if infinite else "NaN"
