"""The reading half of the `Store` protocol by plain loops over lists: what views and live feed run on."""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from dataclasses import dataclass, field

import numpy as np
import pandas as pd

from dashboard.page.views.theme import ALL_STEPS
from dashboard.store.protocol import (
    GapRange,
    Heatmap,
    HistogramColumns,
    MagnitudeHistogram,
    RankScalars,
    RankSeries,
    RankStart,
    RankSummary,
    RunMark,
    RunSummary,
    StepNote,
    StepRange,
    StoredDocument,
    StreamPosition,
    TensorTrack,
)
from probe.wire import Event, Frame, Layout, RunEnd, RunStart, StreamKey, decode_record
from probe.wire.columns import unpack_column
from probe.wire.module_frames import HISTOGRAMS, unpack_histogram


@dataclass
class _Rank:
    start: RunStart
    layout: Layout | None = None
    frames: list[Frame] = field(default_factory=list)
    events: dict[str, Event] = field(default_factory=dict)
    end: RunEnd | None = None
    earlier: list[_Rank] = field(default_factory=list)


class PageStore:
    """Everything in lists, nothing durable."""

    def __init__(self) -> None:
        self._ranks: dict[tuple[str, int], _Rank] = {}
        self._next: dict[StreamKey, int] = {}
        self._lock = threading.RLock()
        self.gap_ranges: list[GapRange] = []
        self.stored_documents: list[StoredDocument] = []
        self.run_marks: dict[str, RunMark] = {}
        self.step_notes: dict[str, list[StepNote]] = {}
        self.removed: list[str] = []
        self.revisions: Counter[str | None] = Counter()
        self.reads: Counter[str] = Counter()
        """What was asked for how often, of the reads that cost something."""

    def position(self, key: StreamKey) -> StreamPosition:
        at = self._next.get(key, 0)
        return StreamPosition(key=key, next_seq=at, stored=at, gaps=0, dropped=0)

    def positions(self, run: str) -> list[StreamPosition]:
        return [self.position(key) for key in self._next if key.run == run]

    def generation(self) -> int:
        return 0

    def append(
        self, key: StreamKey, first_seq: int, records: list[bytes], *, generation: int | None = None
    ) -> int:
        with self._lock:
            expected = self._next.get(key, 0)
            if first_seq > expected or first_seq + len(records) <= expected:
                return expected
            for data in records[expected - first_seq :]:
                self._take(key, decode_record(data))
            self._next[key] = max(expected, first_seq + len(records))
            self.revisions.update((key.run, None))
            return self._next[key]

    def skip(self, key: StreamKey, first_seq: int, end_seq: int, reason: str) -> int:
        self._next[key] = end_seq
        return end_seq

    def commit(self) -> dict[StreamKey, int]:
        return dict(self._next)

    def revision(self, run: str | None = None) -> int:
        return self.revisions[run]

    def view(self) -> contextlib.AbstractContextManager[None]:
        self.reads["view"] += 1
        return contextlib.nullcontext()

    def runs(self) -> list[RunSummary]:
        self.reads["runs"] += 1
        with self._lock:
            by_run: dict[str, list[tuple[int, _Rank]]] = {}
            for (run, rank), data in sorted(self._ranks.items()):
                by_run.setdefault(run, []).append((rank, data))
            summaries = [_summary(run, ranks) for run, ranks in by_run.items()]
        return sorted(summaries, key=lambda run: -run.started)

    def run_start(self, run: str, rank: int = 0) -> RunStart | None:
        found = self._ranks.get((run, rank))
        return found.start if found else None

    def starts(self, run: str, rank: int = 0) -> list[RankStart]:
        found = self._ranks.get((run, rank))
        return [_rank_start(each) for each in (*found.earlier, found) if each.frames] if found else []

    def marks(self) -> dict[str, RunMark]:
        return dict(self.run_marks)

    def notes(self, run: str) -> list[StepNote]:
        return list(self.step_notes.get(run, []))

    def remove_run(self, run: str) -> None:
        self.removed.append(run)

    def layout(self, run: str, rank: int = 0) -> Layout | None:
        found = self._ranks.get((run, rank))
        return found.layout if found else None

    def documents(self, run: str, kind: str, rank: int | None = None) -> list[StoredDocument]:
        of_run = [one for one in self.stored_documents if (one.run, one.document.kind) == (run, kind)]
        return [one for one in of_run if rank in (None, one.rank)]

    def documents_mark(self, run: str) -> int:
        return len(self.stored_documents)

    def scalar_names(self, run: str, rank: int = 0) -> list[str]:
        return sorted({name for frame in self._frames(run, rank, ALL_STEPS) for name in frame.scalars})

    def scalars(
        self, run: str, rank: int, names: list[str], steps: StepRange = ALL_STEPS, max_points: int = 1000
    ) -> pd.DataFrame:
        self.reads["scalars"] += 1
        frames = self._frames(run, rank, steps)
        rows: list[dict[str, object]] = []
        for name in names:
            points = [(f.step, f.time, f.scalars[name]) for f in frames if name in f.scalars]
            size = max(1, -(-len(points) // max_points))
            rows += [_pool(name, points[begin : begin + size]) for begin in range(0, len(points), size)]
        columns = ["name", "step", "time", "min", "mean", "max", "nan", "inf", "pooled"]
        return pd.DataFrame(rows, columns=columns)

    def rank_scalars(
        self, run: str, names: list[str], steps: StepRange = ALL_STEPS, max_columns: int = 1000
    ) -> RankScalars:
        self.reads["rank_scalars"] += 1
        known = sorted(rank for name, rank in self._ranks if name == run)
        world = max((self._ranks[run, rank].start.world_size for rank in known), default=0)
        ranks = sorted({*known, *range(world if world <= 1024 else 0)}) if known else []
        frames = {rank: self._frames(run, rank, steps) for rank in ranks}
        all_steps = sorted({frame.step for found in frames.values() for frame in found})
        first, last = (all_steps[0], all_steps[-1]) if all_steps else (0, -1)
        size = max(1, -(-(last - first + 1) // max_columns))
        starts = range(first, last + 1, size)
        shape = (len(ranks), len(starts))
        series = {
            name: RankSeries(
                mean=np.full(shape, np.nan), largest=np.full(shape, np.nan), flags=np.zeros(shape, np.uint8)
            )
            for name in names
        }
        for row, rank in enumerate(ranks):
            for name in names:
                for column, start in enumerate(starts):
                    inside = [
                        frame.scalars[name]
                        for frame in frames[rank]
                        if start <= frame.step < start + size and name in frame.scalars
                    ]
                    if inside:
                        pooled = _pool(name, [(start, 0.0, value) for value in inside])
                        series[name].mean[row, column] = pooled["mean"]
                        series[name].largest[row, column] = pooled["max"]
                        series[name].flags[row, column] = (
                            1 + 2 * (pooled["nan"] > 0) + 4 * (pooled["inf"] > 0)
                        )
        found = [self._ranks.get((run, rank)) for rank in ranks]
        return RankScalars(
            ranks=tuple(ranks),
            hosts=tuple(one.start.host if one else "" for one in found),
            stages=tuple(one.frames[-1].stage if one and one.frames else None for one in found),
            present=tuple(bool(one and one.frames) for one in found),
            steps=np.array(list(starts), dtype=np.int64),
            steps_per_column=size,
            series=series,
        )

    def heatmap(
        self,
        run: str,
        rank: int,
        statistic: str = "grad_norm",
        steps: StepRange = ALL_STEPS,
        max_columns: int = 1000,
        unfolded: tuple[str, ...] = (),
    ) -> Heatmap | None:
        self.reads["heatmap"] += 1
        layout = self.layout(run, rank)
        if layout is None:
            return None
        frames = self._frames(run, rank, steps)
        rows, kinds, members = _rows(layout, unfolded)
        size = max(1, -(-len(frames) // max_columns))
        groups = [frames[begin : begin + size] for begin in range(0, len(frames), size)]
        values = np.full((len(rows), len(groups)), np.nan, dtype=np.float32)
        flags = np.zeros((len(rows), len(groups)), dtype=np.uint8)
        for column, group in enumerate(groups):
            for frame in group:
                _paint(frame, statistic, members, values[:, column], flags[:, column])
        first = np.array([group[0].step for group in groups], dtype=np.int64)
        return Heatmap(
            rows=rows, row_kinds=kinds, steps=first, steps_per_column=size, values=values, flags=flags
        )

    def statistic_names(self, run: str, rank: int = 0) -> list[str]:
        return sorted(
            {column.name for frame in self._frames(run, rank, ALL_STEPS) for column in frame.columns}
        )

    def histograms(
        self, run: str, rank: int, subject: str, steps: StepRange = ALL_STEPS
    ) -> list[MagnitudeHistogram]:
        layout = self.layout(run, rank)
        found: dict[str, MagnitudeHistogram] = {}
        for frame in self._frames(run, rank, steps):
            for each in frame.histograms:
                rows = _histogram_rows(layout, each.name, subject)
                if rows:
                    counts = unpack_histogram(each)[rows].sum(axis=0)
                    found[each.name] = MagnitudeHistogram(
                        name=each.name, step=frame.step, tensors=len(rows), counts=counts
                    )
        return [found[name] for name in HISTOGRAMS if name in found]

    def gradient_stage(self, run: str, rank: int = 0) -> str:
        frames = [frame for frame in self._frames(run, rank, ALL_STEPS) if frame.columns]
        return frames[-1].stage if frames else ""

    def histogram_columns(
        self, run: str, rank: int, subject: str, steps: StepRange = ALL_STEPS
    ) -> list[HistogramColumns]:
        layout = self.layout(run, rank)
        result = []
        for name in HISTOGRAMS:
            rows = _histogram_rows(layout, name, subject) if layout else []
            found = [
                (frame.step, unpack_histogram(each)[rows].sum(axis=0))
                for frame in self._frames(run, rank, steps)
                for each in frame.histograms
                if each.name == name and rows
            ]
            if found:
                at, counts = zip(*found, strict=True)
                result.append(
                    HistogramColumns(
                        name=name, tensors=len(rows), steps=np.array(at), counts=np.stack(counts)
                    )
                )
        return result

    def tensor_tracks(
        self, run: str, rank: int, subject: str, steps: StepRange = ALL_STEPS, max_columns: int = 256
    ) -> list[TensorTrack]:
        found = []
        frames = self._frames(run, rank, steps)
        for statistic in sorted({column.name for frame in frames for column in frame.columns}):
            for unfolded in ((), tuple(each.name for each in self.layout(run, rank).layers)):
                picture = self.heatmap(run, rank, statistic, steps, max_columns, unfolded)
                kind = "parameter" if unfolded else "layer"
                for row, (name, of) in enumerate(zip(picture.rows, picture.row_kinds, strict=True)):
                    if name == subject and of == kind:
                        found.append(
                            TensorTrack(
                                name=statistic,
                                kind=kind,
                                steps=picture.steps,
                                steps_per_column=picture.steps_per_column,
                                values=picture.values[row],
                                flags=picture.flags[row],
                            )
                        )
        return found

    def histogram_subjects(self, run: str, rank: int = 0) -> list[str]:
        layout = self.layout(run, rank)
        if layout is None or self.histogram_mark(run, rank) is None:
            return []
        return [info.name for info in layout.modules] + [info.name for info in layout.parameters]

    def histogram_mark(self, run: str, rank: int = 0) -> int | None:
        having = [frame.step for frame in self._frames(run, rank, ALL_STEPS) if frame.histograms]
        return len(having) or None

    def events(self, run: str, rank: int | None = None) -> list[Event]:
        with self._lock:
            found = [
                event
                for (name, number), data in self._ranks.items()
                if name == run and rank in (None, number)
                for event in data.events.values()
            ]
        return sorted(found, key=lambda event: event.step)

    def event(self, run: str, event_id: str) -> Event | None:
        return next((event for event in self.events(run) if event.id == event_id), None)

    def run_of_event(self, event_id: str) -> str | None:
        return next((run for (run, _), rank in self._ranks.items() if event_id in rank.events), None)

    def gaps(self, run: str, rank: int | None = None) -> list[GapRange]:
        return list(self.gap_ranges)

    def close(self) -> None:
        """Nothing to release."""

    def _take(self, key: StreamKey, record: object) -> None:
        if isinstance(record, RunStart):
            known = self._ranks.get((record.run, record.rank))
            earlier = [*known.earlier, known] if known else []
            self._ranks[(record.run, record.rank)] = _Rank(start=record, earlier=earlier)
            return
        rank = self._ranks[(key.run, int(key.writer.split("-")[0]))]
        if isinstance(record, Layout):
            rank.layout = record
        elif isinstance(record, Frame):
            rank.frames.append(record)
        elif isinstance(record, Event):
            rank.events[record.id] = record
        elif isinstance(record, RunEnd):
            rank.end = record

    def _frames(self, run: str, rank: int, steps: StepRange) -> list[Frame]:
        with self._lock:
            found = self._ranks.get((run, rank))
            frames = list(found.frames) if found else []
        low = -1 if steps.first is None else steps.first
        high = float("inf") if steps.end is None else steps.end
        return [frame for frame in frames if low <= frame.step < high]


def _summary(run: str, ranks: list[tuple[int, _Rank]]) -> RunSummary:
    counts: dict[str, int] = {}
    for _, data in ranks:
        for event in data.events.values():
            counts[event.severity] = counts.get(event.severity, 0) + 1
    start = ranks[0][1].start
    return RunSummary(
        run=run,
        name=start.name,
        start=start,
        started=start.time,
        ranks=tuple(_rank_summary(number, data) for number, data in ranks),
        event_counts=counts,
    )


def _rank_summary(number: int, data: _Rank) -> RankSummary:
    return RankSummary(
        rank=number,
        incarnation=data.start.incarnation,
        state=data.end.outcome if data.end else "running",
        first_step=data.frames[0].step if data.frames else None,
        last_step=data.frames[-1].step if data.frames else None,
        last_time=data.frames[-1].time if data.frames else None,
    )


def _rank_start(data: _Rank) -> RankStart:
    steps = [frame.step for frame in data.frames]
    return RankStart(
        incarnation=data.start.incarnation, time=data.start.time, first_step=min(steps), last_step=steps[-1]
    )


def _pool(name: str, points: list[tuple[int, float, float]]) -> dict[str, object]:
    values = np.array([value for _, _, value in points], dtype=np.float64)
    finite = values[np.isfinite(values)]
    return {
        "name": name,
        "step": points[0][0],
        "time": points[0][1],
        "min": finite.min() if finite.size else np.nan,
        "mean": finite.mean() if finite.size else np.nan,
        "max": finite.max() if finite.size else np.nan,
        "nan": int(np.isnan(values).sum()),
        "inf": int(np.isinf(values).sum()),
        "pooled": points[-1][0] - points[0][0] + 1,
    }


def _rows(
    layout: Layout, unfolded: tuple[str, ...]
) -> tuple[tuple[str, ...], tuple[str, ...], list[list[int]]]:
    rows: list[str] = []
    kinds: list[str] = []
    members: list[list[int]] = []
    for index, layer in enumerate(layout.layers):
        inside = [i for i, parameter in enumerate(layout.parameters) if parameter.layer == index]
        rows.append(layer.name)
        kinds.append("layer")
        members.append(inside)
        if layer.name in unfolded:
            rows += [layout.parameters[i].name for i in inside]
            kinds += ["parameter"] * len(inside)
            members += [[i] for i in inside]
    return tuple(rows), tuple(kinds), members


def _histogram_rows(layout: Layout, name: str, subject: str) -> list[int]:
    if name == "activation":
        return [i for i, module in enumerate(layout.modules) if module.name == subject]
    own = [i for i, layer in enumerate(layout.layers) if layer.name == subject]
    return [i for i, each in enumerate(layout.parameters) if each.name == subject or each.layer in own]


def _paint(
    frame: Frame, statistic: str, members: list[list[int]], values: np.ndarray, flags: np.ndarray
) -> None:
    column = next((column for column in frame.columns if column.name == statistic), None)
    if column is None:
        return
    data = unpack_column(column)
    for row, inside in enumerate(members):
        norm = float(np.sqrt(np.sum(data[inside] ** 2)))
        flags[row] |= 1 | (2 if np.isnan(norm) else 0) | (4 if np.isinf(norm) else 0)
        if np.isfinite(norm):
            values[row] = np.float32(np.fmax(values[row], norm))
