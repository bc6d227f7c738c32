"""How much of each thing the store takes, and the count of what each run has.

Beyond a limit a record, or the part of it that has no room, is left out, counted and told. What one run has
too much of takes no room from another. Changed under the store's lock.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final, Literal

from probe.wire import MEMBERS_IN_FULL

MAX_RUNS: Final = 10_000
"""Runs of a store; those that come later wait in their spool."""
MAX_STREAMS: Final = 32_768
"""Streams of a run: three for each start of a rank, one for each host."""
MAX_INCARNATIONS: Final = 8_192
"""Starts of all ranks of a run together."""
MAX_MEMBERS: Final = MEMBERS_IN_FULL
"""Models of one run, made one after the other, that are kept; of those that come later their events are."""
MAX_START_BYTES: Final = 64 * 1024**2
"""Of the descriptions of all starts of a run: they stay in memory."""
MAX_LAYOUTS: Final = 16_384
"""Layouts of all starts of a run together."""
MAX_SERIES: Final = 10_000
"""Series of a rank, or statistics of a layout."""
MAX_SERIES_OF_RUN: Final = 200_000
MAX_GAPS: Final = 20_000
"""Holes of a run that are kept one by one; the streams' accounts count all."""
MAX_EVENTS: Final = 20_000
"""Events of a run; newer states of those that are there are always taken."""
MAX_EVENT_BYTES: Final = 256 * 1024**2
MAX_DOCUMENTS: Final = 16_384
MAX_DOCUMENT_BYTES: Final = 256 * 1024**2
"""Of all documents of a run, whose kinds are read as a whole."""
LAYOUT_CACHE_BYTES: Final = 64 * 1024**2
"""Encoded layouts whose decoded form stays in memory; the others are read again when they are needed."""
_COUNTED_RUNS: Final = 256
"""Runs whose events and documents are known by their ids; of others they are read again."""

Held = Literal["streams", "incarnations", "start_bytes", "layouts", "series", "gaps"]
MOST: Final[dict[Held, int]] = {
    "streams": MAX_STREAMS,
    "incarnations": MAX_INCARNATIONS,
    "start_bytes": MAX_START_BYTES,
    "layouts": MAX_LAYOUTS,
    "series": MAX_SERIES_OF_RUN,
    "gaps": MAX_GAPS,
}
_SAID: Final[dict[Held, str]] = {"start_bytes": "bytes of descriptions of its starts"}


class RunLimits:
    """Counts what each run has, and what had no room."""

    def __init__(self) -> None:
        self._held: dict[str, Counter[Held]] = {}
        self._left_out: dict[str, tuple[int, str]] = {}
        self._refused_runs = 0

    def refuses(self, run: str) -> str | None:
        """Return why a run is not taken; None for one that is."""
        if run in self._held or len(self._held) < MAX_RUNS:
            return None
        self._refused_runs += 1
        return f"the store holds {MAX_RUNS:,} runs, as many as it may; `dashboard clean` makes room"

    def has_room(self, run: str, what: Held, *, more: int = 1) -> bool:
        """Whether a run may have so much more."""
        held = self._held.get(run)
        return (0 if held is None else held[what]) + more <= MOST[what]

    def add(self, run: str, what: Held, *, more: int = 1) -> None:
        """Count it; what is read from the database is counted too."""
        self._held.setdefault(run, Counter())[what] += more

    def leave_out(self, run: str, reason: str, *, count: int = 1) -> None:
        """Count what had no room."""
        self._left_out[run] = (self._left_out.get(run, (0, ""))[0] + count, reason)

    def reason(self, what: Held) -> str:
        """Return the words for a limit."""
        return f"more than {MOST[what]:,} {_SAID.get(what, what)}"

    def left_out(self, run: str) -> int:
        """Return how much of a run had no room since the store was opened."""
        return self._left_out.get(run, (0, ""))[0]

    def forget(self, run: str) -> None:
        """A run has been deleted."""
        self._held.pop(run, None)
        self._left_out.pop(run, None)

    def notices(self) -> list[str]:
        """Return what the page must tell: a sentence for runs, one for what they had too much of."""
        found = []
        if self._refused_runs and len(self._held) >= MAX_RUNS:
            found.append(
                f"The store holds {MAX_RUNS:,} runs, as many as it may: newer ones wait in the spool. "
                "`dashboard clean` makes room."
            )
        if self._left_out:
            run, (count, reason) = max(self._left_out.items(), key=lambda item: item[1][0])
            more = f"; so it is with {len(self._left_out) - 1:,} more" if len(self._left_out) > 1 else ""
            found.append(f"Of run {run} {count:,} things were left out: {reason}{more}.")
        return found


class _Sizes:
    """Bytes of each item of a run, by what tells them apart."""

    def __init__(self, items: Iterable[tuple[object, int]] = ()) -> None:
        self._of = dict(items)
        self._bytes = sum(self._of.values())

    def take(self, identity: object, size: int, *, most: int, most_bytes: int, what: str) -> str | None:
        """Count an item, in place of its older state; return why it has no room, None where it has."""
        more = size - self._of.get(identity, 0)
        if identity not in self._of and len(self._of) >= most:
            return f"more than {most:,} {what}"
        if more > 0 and self._bytes + more > most_bytes:
            return f"more than {most_bytes // 1024**2} MiB of {what}"
        self._of[identity] = size
        self._bytes += more
        return None


@dataclass(slots=True)
class _Items:
    """What a run has."""

    events: _Sizes = field(default_factory=_Sizes)
    documents: _Sizes = field(default_factory=_Sizes)


class ItemLimits:
    """Knows which events and documents the runs have that are arriving; newer states replace older ones."""

    def __init__(self) -> None:
        self._runs: OrderedDict[str, _Items] = OrderedDict()

    def knows(self, run: str) -> bool:
        """Whether a run's items have been read."""
        return run in self._runs

    def begin(
        self, run: str, events: Iterable[tuple[object, int]], documents: Iterable[tuple[object, int]]
    ) -> None:
        """Take what the store has of a run, as (what tells it apart, bytes)."""
        if run in self._runs:
            return
        self._runs[run] = _Items(_Sizes(events), _Sizes(documents))
        if len(self._runs) > _COUNTED_RUNS:
            self._runs.popitem(last=False)

    def take_event(self, run: str, number: str, size: int) -> str | None:
        """Count an event; return why it has no room, None where it has."""
        events = self._of(run).events
        return events.take(number, size, most=MAX_EVENTS, most_bytes=MAX_EVENT_BYTES, what="events")

    def take_document(self, run: str, identity: object, size: int) -> str | None:
        """Count a document; return why it has no room, None where it has."""
        documents = self._of(run).documents
        return documents.take(
            identity, size, most=MAX_DOCUMENTS, most_bytes=MAX_DOCUMENT_BYTES, what="documents"
        )

    def forget(self, run: str) -> None:
        """A run has been deleted."""
        self._runs.pop(run, None)

    def _of(self, run: str) -> _Items:
        items = self._runs.setdefault(run, _Items())
        self._runs.move_to_end(run)
        return items
