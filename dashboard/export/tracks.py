"""The tracks of a rank that can be exported alone, and the series that each one shows. Pure.

A track is what the page draws as one: a chart of `CHARTS`, the heatmap, or one series of the user's own.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from ..errors import UnknownTrackError
from ..page.views.chart_specs import CHARTS, ChartSpec, logged_chart, logged_names
from ..page.views.throughput import with_derived_names

HEATMAP: Final = "heatmap"
MAX_NAME: Final = 1024
"""Characters of a track's name; those of the user's own series are the longest."""
_LISTED: Final = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Track:
    """One track."""

    id: str
    """A chart's id, `heatmap`, or ``log/NAME``."""
    title: str
    series: tuple[str, ...]
    """What it draws, series of `throughput.DERIVED` among them; empty for the heatmap."""


def tracks_of(stored: Iterable[str], *, has_heatmap: bool) -> list[Track]:
    """Return the tracks of a rank, in the page's order.

    Args:
        stored: Names of its series in the store.
        has_heatmap: Whether its model is known.
    """
    known = with_derived_names(stored)
    found = [_track(spec, known) for spec in CHARTS if spec.lines(known)]
    if has_heatmap:
        found.append(Track(id=HEATMAP, title="Heatmap", series=()))
    return [*found, *(_track(logged_chart(name), known) for name in logged_names(known))]


def choose_track(wanted: str, tracks: Iterable[Track]) -> Track:
    """Return a track by its id.

    Raises:
        UnknownTrackError: there is none of that id; lists those that there are.
    """
    known = {track.id: track for track in tracks}
    if wanted in known:
        return known[wanted]
    names = list(known)
    more = f" and {len(names) - _LISTED:,} more" if len(names) > _LISTED else ""
    there = f"choose one of {', '.join(names[:_LISTED])}{more}" if names else "nothing has been recorded yet"
    raise UnknownTrackError(f"There is no track {wanted!r}; {there}.")


def _track(spec: ChartSpec, known: Iterable[str]) -> Track:
    there = list(known)
    marks = [name for name in spec.marks if name in there]
    return Track(id=spec.id, title=spec.title, series=(*spec.lines(there), *marks))
