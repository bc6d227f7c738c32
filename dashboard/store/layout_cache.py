"""The decoded layouts that are in use. Those used longest ago are read from the database again when needed.

Used by the catalogue, under the store's lock.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable

from probe.wire import Layout, decode_record

from .layers import Geometry, geometry_of
from .limits import LAYOUT_CACHE_BYTES


class LayoutCache:
    """Layouts and their geometry by timeline; never forgets the newest, nor one that is not yet saved.

    Args:
        load: returns the encoded layout of a timeline that the database has.
    """

    def __init__(self, load: Callable[[int], bytes]) -> None:
        self._load = load
        self._found: OrderedDict[int, tuple[Layout, Geometry, int]] = OrderedDict()
        """Newest use last, with the encoded size."""
        self._bytes = 0
        self._unsaved: set[int] = set()

    def __len__(self) -> int:
        """Layouts in memory."""
        return len(self._found)

    def get(self, timeline: int) -> tuple[Layout, Geometry]:
        """Return a registered layout and its geometry."""
        if timeline not in self._found:
            data = self._load(timeline)
            record = decode_record(data)
            assert isinstance(record, Layout)
            self.put(timeline, record, geometry_of(record), size=len(data), is_saved=True)
        self._found.move_to_end(timeline)
        return self._found[timeline][:2]

    def put(self, timeline: int, layout: Layout, geometry: Geometry, *, size: int, is_saved: bool) -> None:
        """Keep a layout of so many encoded bytes."""
        if not is_saved:
            self._unsaved.add(timeline)
        self._drop(timeline)
        self._found[timeline] = (layout, geometry, size)
        self._bytes += size
        self._trim()

    def note_saved(self, timelines: Iterable[int]) -> None:
        """The database has these now."""
        self._unsaved.difference_update(timelines)
        self._trim()

    def forget(self, timeline: int) -> None:
        """The run has been deleted."""
        self._drop(timeline)
        self._unsaved.discard(timeline)

    def _drop(self, timeline: int) -> None:
        if (found := self._found.pop(timeline, None)) is not None:
            self._bytes -= found[2]

    def _trim(self) -> None:
        if self._bytes <= LAYOUT_CACHE_BYTES:
            return
        for timeline in list(self._found)[:-1]:
            if timeline not in self._unsaved:
                self._drop(timeline)
            if self._bytes <= LAYOUT_CACHE_BYTES:
                return
