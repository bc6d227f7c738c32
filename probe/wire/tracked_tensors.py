"""What a document of kind `tracked_tensors` holds: what a script follows with `probe.track_tensor`.

The newest document of a start replaces the ones before. Imports no torch: the page reads it too.
"""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

from .records import Count

KIND: Final = "tracked_tensors"
MOST: Final = 40
"""Tensors that a document names: the largest of those that live, then those freed last."""
_Short = Annotated[str, msgspec.Meta(max_length=512)]


class TensorRow(msgspec.Struct, frozen=True, kw_only=True):
    """One tensor."""

    name: _Short
    dtype: _Short
    shape: Annotated[tuple[Count, ...], msgspec.Meta(max_length=64)]
    device: _Short
    bytes: Count
    """What its elements occupy."""
    since: float
    """UNIX seconds of the call of `track_tensor`."""
    freed: float | None = None
    """UNIX seconds; None while it lives."""


class TrackedBody(msgspec.Struct, frozen=True, kw_only=True):
    """All that is tracked."""

    tensors: Annotated[tuple[TensorRow, ...], msgspec.Meta(max_length=MOST)] = ()
    alive: Count = 0
    """How many live, also those that are not named."""
    alive_bytes: Count = 0
    tracked: Count = 0
    """How many are remembered, freed ones too."""
