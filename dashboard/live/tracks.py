"""What a picture draws: pairs of arrays over steps that nobody may change; and how a client gets them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from probe.wire.layer_values import narrow

from .codec import Array, DeltaEncoder, shift


@dataclass(frozen=True, slots=True, eq=False)
class Track:
    """Values over an index that moves through the steps. Clients share it: its arrays are read-only."""

    index_key: str
    index: Array
    """(points,) ascending."""
    values_key: str
    values: Array
    """(points * rows,), the rows of a point side by side."""
    rows: int = 1

    def __post_init__(self) -> None:
        self.index.setflags(write=False)
        self.values.setflags(write=False)

    @property
    def size_bytes(self) -> int:
        """Of both arrays."""
        return self.index.nbytes + self.values.nbytes


def line_track(key: str, x: Array, y: Array) -> Track:
    """Return one trace of a line, in the types that it travels in; what is finite stays so."""
    return Track(f"{key}/x", x.astype("<f8"), f"{key}/y", narrow(y).astype("<f4", copy=False))


def send_tracks(encoder: DeltaEncoder, tracks: Iterable[Track], *, held_rows: dict[str, int]) -> None:
    """Put what a client lacks of tracks into its message.

    Args:
        encoder: The client's.
        tracks: What it shall hold then.
        held_rows: Key of values -> rows of a point that the client holds; brought up to date.
    """
    for track in tracks:
        if encoder.held(track.index_key) is track.index and encoder.held(track.values_key) is track.values:
            continue
        drop = shift(encoder.held(track.index_key), track.index)
        encoder.add(track.index_key, track.index, drop=drop)
        encoder.add(track.values_key, track.values, drop=drop * held_rows.get(track.values_key, track.rows))
        held_rows[track.values_key] = track.rows


def size_bytes(tracks: Iterable[Track]) -> int:
    """Return what their arrays take."""
    return sum(track.size_bytes for track in tracks)
