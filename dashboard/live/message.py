"""Builds the messages for one client of the live feed; remembers what that client already holds.

Called by the live hub on a reader thread, one call at a time per client. What is read and computed for a
message is a picture, which clients share; only the difference to what this client holds is its own.
"""

from __future__ import annotations

import time
from typing import Any, Final

from .codec import DeltaEncoder
from .newest import Edge, points_after
from .pictures import Picture, Pictures
from .tracks import send_tracks
from .view import Subscription

VERSION: Final = 1


class ClientView:
    """What one client holds of the pictures."""

    def __init__(self, pictures: Pictures) -> None:
        self._pictures = pictures
        self._encoder = DeltaEncoder()
        self._runs: list[dict[str, Any]] | None = None
        self._notes: tuple[int, list[dict[str, Any]]] | None = None
        """With the wish that they were sent for: the page drops what answers an older one."""
        self._rows: tuple[str, ...] | None = None
        self._held_rows: dict[str, int] = {}
        self._drawn: tuple[int, Edge] | None = None
        """The wish whose lines the client holds, and where they end."""

    def message(self, wish: Subscription, *, with_data: bool, asked_at: float | None = None) -> bytes:
        """Return the next message.

        Args:
            wish: What the client wants to see.
            with_data: Lines and heatmap too, not only state, tiles and events.
            asked_at: Monotonic seconds: the message has at least what was there then. None is now.
        """
        picture = self._pictures.look(wish, with_data=with_data, asked_at=asked_at)
        header = {"v": VERSION, "now": time.time(), "subscription": wish.id, **picture.status.fields}
        if picture.status.runs != self._runs:
            self._runs = header["runs"] = picture.status.runs
        notes = (wish.id, picture.status.notes)
        if notes != self._notes:
            self._notes, header["notes"] = notes, picture.status.notes
        if picture.fields is not None:
            header |= picture.fields
            header["heatmap"] = self._heatmap(picture)
            send_tracks(self._encoder, picture.tracks, held_rows=self._held_rows)
            self._drawn = None if picture.edge is None else (wish.id, picture.edge)
        elif newest := self._newest(wish, picture):
            header["newest"] = newest
        return self._encoder.finish(header)

    def _newest(self, wish: Subscription, picture: Picture) -> dict[str, Any]:
        """Points of the tracks since the last picture, which the next one will have."""
        newest = picture.status.newest
        if newest is None or self._drawn is None or wish.paused or wish.end is not None:
            return {}
        asked, edge = self._drawn
        return points_after(edge, newest) if asked == wish.id else {}

    def _heatmap(self, picture: Picture) -> dict[str, Any] | None:
        """Header fields; with the names of the rows where the client holds others."""
        if picture.heatmap is None:
            return None
        if self._rows == picture.heatmap.rows:
            return picture.heatmap.fields
        self._rows = picture.heatmap.rows
        shown = picture.heatmap
        return shown.fields | {"rows": shown.rows, "kinds": shown.kinds, "tensors": shown.tensors}
