"""What a document of kind `optimization` holds: modes that were compared on copies of a model. No torch."""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

KIND: Final = "optimization"
MAX_ROWS: Final = 16
Text = Annotated[str, msgspec.Meta(max_length=4096)]


class OptimizationRow(msgspec.Struct, frozen=True, kw_only=True):
    """One mode. Times in seconds, memory in bytes; None where it was not measured."""

    mode: Annotated[str, msgspec.Meta(max_length=64)]
    step_s: float | None = None
    first_step_s: float | None = None
    speedup: float | None = None
    """Median over pairs of a plain step and one in the mode."""
    speedup_low: float | None = None
    speedup_high: float | None = None
    peak_bytes: int | None = None
    """What a step allocates at most over what was there before it."""
    memory_saved: float | None = None
    """Fraction of mode `none`'s, negative where more is needed."""
    output_difference: float | None = None
    """Relative L2 difference from mode `none`; None is unknown, or not finite."""
    loss_difference: float | None = None
    gradient_difference: float | None = None
    is_within: bool | None = None
    """Whether the differences are within their limits."""
    note: Text | None = None
    error: Text | None = None
    """Why the mode does not work."""


class OptimizationBody(msgspec.Struct, frozen=True, kw_only=True):
    """One comparison."""

    model: Annotated[str, msgspec.Meta(max_length=512)]
    device: Annotated[str, msgspec.Meta(max_length=64)]
    pairs: int
    """Timed steps of each mode."""
    recommended: Annotated[str, msgspec.Meta(max_length=64)]
    why: Text
    rows: Annotated[list[OptimizationRow], msgspec.Meta(max_length=MAX_ROWS)] = []
