"""The live edge: what was appended and is not yet in the database, as numpy blocks that reads merge in.

Blocks are immutable once made. `append` adds them, `commit` marks them with the epoch that makes them
durable, and readers take those that their snapshot of the database does not contain. The store's lock guards
the list; nothing here takes a lock.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt

from probe.wire import Event

from .protocol import StoredDocument

Ints = npt.NDArray[np.int64]
MAX_SEQ: Final = 2**62
"""Records beyond this number are not taken: no writer counts so far, and the database's numbers end there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalarBlock:
    """Scalars of the frames of one append, one element per value."""

    timeline: int
    incarnation: int
    frame_steps: Ints
    """One element per frame."""
    series: Ints
    step: Ints
    seq: Ints
    time: npt.NDArray[np.float64]
    value: npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorRows:
    """One statistic of the frames of one append."""

    series: int
    kind: str
    """`layer`, `parameter` or `module`."""
    step: Ints
    seq: Ints
    values: npt.NDArray[np.float32]
    """(frames, width)."""
    flags: npt.NDArray[np.uint8] | None
    """(frames, width); None when every value was measured and is finite."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorBlock:
    """All statistics of the frames of one append that share a layout."""

    timeline: int
    incarnation: int
    step: Ints
    rows: tuple[TensorRows, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class HistogramRow:
    """One histogram of all parameters or modules of a layout at one step."""

    timeline: int
    series: int
    step: int
    incarnation: int
    seq: int
    data: bytes
    """(rows, BINS) little-endian uint32."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GapRow:
    """A hole in a metrics stream. `last_step` is filled when the next frame arrives."""

    run: str
    writer: str
    source: str
    """`skip` (counted in the stream's account), `journal` (announced by a Gap record), or `layout` and
    `detail`: steps that are stored without their tensors, for what names their rows, or they, are missing."""
    first_seq: int
    end_seq: int
    """Of `layout`: `first_seq` and the number of such steps."""
    reason: str
    first_step: int | None
    last_step: int | None

    def known(self) -> int:
        """Return a number that grows with what is known of it."""
        return 2 * min(self.end_seq, MAX_SEQ // 2) + (self.last_step is not None)


@dataclass(slots=True)
class Pending:
    """What one append added."""

    scalars: list[ScalarBlock] = field(default_factory=list)
    tensors: list[TensorBlock] = field(default_factory=list)
    histograms: list[HistogramRow] = field(default_factory=list)
    events: list[tuple[Event, bytes]] = field(default_factory=list)
    host_samples: list[tuple[str, int, int, float, bytes]] = field(default_factory=list)
    documents: list[StoredDocument] = field(default_factory=list)
    writer: str = ""
    """Whose stream it is of."""
    event_seqs: list[int | None] = field(default_factory=list)
    """The number of the record of each event; None of one that is not of the stream."""
    document_seqs: list[int] = field(default_factory=list)
    """The number of the record of each document."""
    part: int = 0
    """Of the store's, which are made durable one by one."""
    epoch: int | None = None
    """The commit that contains it; None until one has begun."""

    def without(self, run: str, timelines: Collection[int]) -> Pending:
        """Return what is left without a run, whose timelines are these."""
        events = [at for at, (event, _) in enumerate(self.events) if event.run != run]
        documents = [at for at, found in enumerate(self.documents) if found.run != run]
        return Pending(
            scalars=[block for block in self.scalars if block.timeline not in timelines],
            tensors=[block for block in self.tensors if block.timeline not in timelines],
            histograms=[row for row in self.histograms if row.timeline not in timelines],
            events=[self.events[at] for at in events],
            host_samples=[row for row in self.host_samples if row[0] != run],
            documents=[self.documents[at] for at in documents],
            writer=self.writer,
            event_seqs=[self.event_seqs[at] for at in events],
            document_seqs=[self.document_seqs[at] for at in documents],
            part=self.part,
            epoch=self.epoch,
        )


class Edge:
    """The appended and not yet durable part of the store."""

    def __init__(self) -> None:
        self._items: list[Pending] = []
        self._oldest_epoch = 0

    def add(self, item: Pending) -> None:
        """Make an append visible to readers."""
        self._items.append(item)

    def take(self, epoch: int, part: int = 0) -> list[Pending]:
        """Mark all of a part as of the commit `epoch` and return it; a failed commit takes it again."""
        taken = [item for item in self._items if item.part == part and item.epoch in (None, epoch)]
        for item in taken:
            item.epoch = epoch
        return taken

    def forget(self, epoch: int) -> None:
        """Drop what commits before `epoch` made durable; snapshots older than `epoch - 1` become useless."""
        self._items = [item for item in self._items if item.epoch is None or item.epoch >= epoch]
        self._oldest_epoch = epoch - 1

    def forget_run(self, run: str, timelines: Collection[int]) -> None:
        """Drop what waits of a run that has been deleted, whose timelines are these."""
        self._items = [item.without(run, timelines) for item in self._items]

    def beyond(self, epoch: int) -> list[Pending] | None:
        """Return what a snapshot of the database at `epoch` lacks; None if it is too old to say."""
        if epoch < self._oldest_epoch:
            return None
        return [item for item in self._items if item.epoch is None or item.epoch > epoch]
