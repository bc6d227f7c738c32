"""The decoded layouts that are in use. Those used longest ago are read from the database again when needed.

Used by the catalogue, under the store's lock.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable

from probe.errors import WireError
from probe.wire import Layout, decode_record
from probe.wire.layer_values import Geometry, geometry_of

from .limits import LAYOUT_CACHE_BYTES
from .odd_rows import OddRows


class LayoutCache:
    """Layouts and their geometry by timeline; never forgets the newest, nor one that is not yet saved.

    Args:
        load: returns the encoded layout of a timeline that the database has.
        odd: where one that cannot be read is noted.
    """

    def __init__(self, load: Callable[[int], bytes], odd: OddRows) -> None:
        self._load, self._odd = load, odd
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
            self.put(timeline, *self._decode(timeline, data), size=len(data), is_saved=True)
        self._found.move_to_end(timeline)
        return self._found[timeline][:2]

    def _decode(self, timeline: int, data: bytes) -> tuple[Layout, Geometry]:
        """Return a stored layout; an empty one, which no frame fits, where it cannot be read."""
        try:
            record = decode_record(data)
            if isinstance(record, Layout):
                return record, geometry_of(record)
        except (WireError, ValueError):
            pass  # noted below
        self._odd.add("layouts", str(timeline))
        empty = Layout(layout=0, model="", parameters=[], layers=[])
        return empty, geometry_of(empty)

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
