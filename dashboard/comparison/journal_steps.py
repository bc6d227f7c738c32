"""Reads one rank of a run from its journals, for a comparison: numbers step by step, and how it was started.

Called by `dashboard diff`. Opens no store. What cannot be read is counted.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path

import numpy as np

from probe.delivery.journal.journal_reader import Skipped, read_stream
from probe.delivery.journal.rank_journals import rank_of
from probe.delivery.journal.run_folders import list_writers, read_run_json
from probe.errors import WireError
from probe.wire import Document, Frame, Layout, Record, RunStart, StreamName, decode_record, member_number
from probe.wire.columns import unpack_column, unpack_missing
from probe.wire.documents import read_body
from probe.wire.layer_values import Geometry, geometry_of, reduce_layers
from probe.wire.start_facts import KIND, StartFacts

from .parting import WINDOW, Mask, Series, StepBlock, Values, is_compared


@dataclass(slots=True)
class JournalRank:
    """One rank of a run, with all its incarnations."""

    folder: Path
    """The run's."""
    member: int = 0
    """Which of the models that the run made one after the other."""
    models: int = 1
    """How many it made."""
    writers: list[Path] = field(default_factory=list)
    """Of the rank's incarnations, oldest first; empty for a rank that the run has not."""
    start: RunStart | None = None
    """Of the newest incarnation."""
    facts: StartFacts | None = None
    """The newest."""
    layout: Layout | None = None
    """The newest."""
    layouts: dict[tuple[Path, int], Geometry] = field(default_factory=dict)
    unreadable: int = 0
    """Records that are missing, damaged, or not in the order of their steps; grows while steps are read."""


def open_rank(folder: Path, rank: int, member: int = 0) -> JournalRank:
    """Read what a run's journals say of one rank apart from its steps.

    Args:
        folder: `SPOOL/<run>`.
        rank: number of the rank.
        member: which of the models that the run made one after the other.
    """
    writers = [writer for writer in list_writers(folder) if rank_of(writer) == str(rank)]
    writers.sort(key=lambda writer: int(writer.name.rpartition("-")[2]))
    found = JournalRank(folder, member, writers=writers, start=read_run_json(folder))
    for writer in writers:
        for record in _records(found, writer, "events"):
            if isinstance(record, RunStart):
                number = member_number(record.member)
                found.models = max(found.models, number + 1)
                if number == member:
                    found.start = record
            elif isinstance(record, Layout):
                _add_layout(found, writer, record)
            elif isinstance(record, Document) and record.kind == KIND:
                _add_facts(found, record)
    return found


def read_steps(rank: JournalRank) -> Iterator[StepBlock]:
    """Yield what was recorded, window after window.

    A restart takes the place of all that was recorded from its first step on.
    """
    unreadable = rank.unreadable
    firsts = [next((frame.step for _, frame in _frames(rank, writer)), None) for writer in rank.writers]
    ends = [
        min((step for step in firsts[n + 1 :] if step is not None), default=None) for n in range(len(firsts))
    ]
    rank.unreadable = unreadable  # the first frames are read again
    frames = (
        (writer, frame)
        for writer, end in zip(rank.writers, ends, strict=True)
        for _, frame in _frames(rank, writer)
        if end is None or frame.step < end
    )
    done = -1
    for window, members in groupby(frames, key=lambda pair: pair[1].step // WINDOW):
        together = list(members)
        if window <= done:
            rank.unreadable += len(together)
            continue
        done = window
        yield _block(rank, together)


def _block(rank: JournalRank, frames: Sequence[tuple[Path, Frame]]) -> StepBlock:
    """Put the frames of one window together; of a step that comes twice the later one counts."""
    newest = {frame.step: (writer, frame) for writer, frame in frames}
    kept = [newest[step] for step in sorted(newest)]
    only = [frame for _, frame in kept]
    rows_of: dict[tuple[Path, int], list[int]] = {}
    for row, (writer, frame) in enumerate(kept):
        if (writer, frame.layout) in rank.layouts:
            rows_of.setdefault((writer, frame.layout), []).append(row)
    layers = tuple(dict.fromkeys(name for key in rows_of for name in rank.layouts[key].layers))
    place = {name: index for index, name in enumerate(layers)}
    norms = np.full((len(kept), len(layers)), np.nan)
    measured = np.zeros((len(kept), len(layers)), dtype=np.bool_)
    for key, rows in rows_of.items():
        geometry = rank.layouts[key]
        cells = np.ix_(rows, [place[name] for name in geometry.layers])
        norms[cells], measured[cells] = _layer_norms(rank, [only[row] for row in rows], geometry)
    names = sorted({name for frame in only for name in frame.scalars if is_compared(name)})
    return StepBlock(
        steps=np.array([frame.step for frame in only], dtype=np.int64),
        scalars={name: _series(only, name) for name in names},
        layers=layers,
        norms=norms,
        measured=measured,
    )


def _series(frames: Sequence[Frame], name: str) -> Series:
    return Series(
        values=np.array([frame.scalars.get(name, np.nan) for frame in frames]),
        measured=np.array([name in frame.scalars for frame in frames]),
    )


def _layer_norms(rank: JournalRank, frames: Sequence[Frame], geometry: Geometry) -> tuple[Values, Mask]:
    """Return (frames, layers) norms and which were measured; none where a column does not fit."""
    values = np.zeros((len(frames), len(geometry.parameters)))
    flags = np.zeros(values.shape, dtype=np.uint8)
    for row, frame in enumerate(frames):
        column = next((column for column in frame.columns if column.name == "grad_norm"), None)
        if column is None:
            continue
        try:
            norms, missing = unpack_column(column), unpack_missing(frame, values.shape[1])
        except WireError:
            rank.unreadable += 1
            continue
        if len(norms) != values.shape[1]:
            rank.unreadable += 1
            continue
        values[row], flags[row] = norms, ~missing
    norms_of_layers, found = reduce_layers("norm", values, flags, geometry)
    assert found is not None
    return norms_of_layers.astype(np.float64), found != 0


def _frames(rank: JournalRank, writer: Path) -> Iterator[tuple[Path, Frame]]:
    """Of the one model, where the run makes several one after the other."""
    records = _records(rank, writer, "metrics")
    frames = (record for record in records if isinstance(record, Frame))
    return ((writer, frame) for frame in frames if frame.member == rank.member)


def _records(rank: JournalRank, writer: Path, stream: StreamName) -> Iterator[Record]:
    def skipped(hole: Skipped) -> None:
        rank.unreadable += hole.end_seq - hole.first_seq

    for _, data in read_stream(writer, stream, on_skip=skipped):
        try:
            yield decode_record(data)
        except WireError:
            rank.unreadable += 1


def _add_layout(found: JournalRank, writer: Path, layout: Layout) -> None:
    try:
        found.layouts[writer, layout.layout] = geometry_of(layout)
    except ValueError:
        found.unreadable += 1
    else:
        found.layout = layout if member_number(layout.member) == found.member else found.layout


def _add_facts(found: JournalRank, document: Document) -> None:
    try:
        found.facts = read_body(document, StartFacts)
    except WireError:
        found.unreadable += 1
