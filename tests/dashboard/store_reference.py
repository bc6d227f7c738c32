"""Builds streams of records for the store's tests, and answers the same questions slowly in pure Python."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from probe.wire import Event, Frame, LayerInfo, Layout, ParameterInfo, RunStart, StreamKey, encode
from probe.wire.columns import pack_column

RUN = "run-1"


def make_layout(layers: dict[str, list[str]], *, number: int = 0, model: str = "net") -> Layout:
    return Layout(
        layout=number,
        model=model,
        layers=[LayerInfo(name=name, type="Linear") for name in layers],
        parameters=[
            ParameterInfo(name=f"{layer}.{name}", shape=[2], dtype="float32", layer=index)
            for index, (layer, names) in enumerate(layers.items())
            for name in names
        ],
    )


SMALL = make_layout({"first": ["weight", "bias"], "second": ["weight"]})


def stream_key(
    stream: str = "metrics", *, rank: int = 0, incarnation: int = 1000, run: str = RUN
) -> StreamKey:
    return StreamKey(run=run, writer=f"{rank}-{incarnation}", stream=stream)


def make_frame(step, columns=None, *, scalars=None, missing=None, layout=0, time=None) -> bytes:
    packed = [
        pack_column(name, np.array(values, dtype=np.float64)) for name, values in (columns or {}).items()
    ]
    mask = b"" if missing is None else np.packbits(np.array(missing, dtype=bool)).tobytes()
    return encode(
        Frame(
            step=step,
            time=float(step) if time is None else time,
            layout=layout,
            scalars=scalars or {},
            columns=packed,
            missing=mask,
        )
    )


def make_event(number: int, *, step: int = 0, rank: int = 0, severity="critical", **fields) -> Event:
    return Event(
        id=f"{number:016x}",
        run=fields.pop("run", RUN),
        rank=rank,
        incarnation=1000,
        step=step,
        time=float(step),
        kind=fields.pop("kind", "nonfinite_gradient"),
        severity=severity,
        message=fields.pop("message", "a NaN"),
        **fields,
    )


def begin(store, *, layout=SMALL, rank=0, incarnation=1000, run=RUN, now=0.0) -> StreamKey:
    """Append the start and the layout of an incarnation; return the key of its metrics."""
    start = RunStart(run=run, rank=rank, incarnation=incarnation, name="demo", time=now)
    store.append(
        stream_key("events", rank=rank, incarnation=incarnation, run=run), 0, [encode(start), encode(layout)]
    )
    return stream_key("metrics", rank=rank, incarnation=incarnation, run=run)


def column_width(first: int, last: int, limit: int) -> int:
    """Smallest power of two that needs at most `limit` aligned columns for `[first, last]`."""
    width = 1
    while last // width - first // width + 1 > limit:
        width *= 2
    return width


@dataclass
class Reference:
    """What arrived: (series, step) -> (incarnation, seq, time, value), newest wins.

    A step belongs to the newest incarnation that has it: what an older one has there counts for nothing.
    """

    values: dict[tuple[str, int], tuple[int, int, float, float]] = field(default_factory=dict)
    owners: dict[int, int] = field(default_factory=dict)
    """Step -> its newest incarnation."""

    @property
    def steps(self) -> set[int]:
        return set(self.owners)

    def shown(self, name: str, step: int) -> tuple[int, int, float, float] | None:
        found = self.values.get((name, step))
        return found if found is not None and found[0] == self.owners[step] else None

    def add(
        self, name: str, step: int, *, incarnation: int, seq: int, value: float, time: float = 0.0
    ) -> None:
        self.owners[step] = max(incarnation, self.owners.get(step, incarnation))
        old = self.values.get((name, step))
        if old is None or old[:2] < (incarnation, seq):
            self.values[name, step] = (incarnation, seq, time, value)

    def points(self, name: str, first: int | None, end: int | None, limit: int) -> list[tuple]:
        """Rows (step, time, min, mean, max, nan, inf, pooled) of one series."""
        low = min(self.steps) if first is None else max(first, min(self.steps))
        high = max(self.steps) if end is None else min(end - 1, max(self.steps))
        if low > high:
            return []
        width = column_width(low, high, limit)
        groups: dict[int, list[tuple[int, float, float]]] = {}
        for (series, step), (number, _, time, value) in sorted(self.values.items()):
            if (
                series == name
                and number == self.owners[step]
                and low // width <= step // width <= high // width
            ):
                groups.setdefault(step // width, []).append((step, time, value))
        return [self._point(groups[key]) for key in sorted(groups)]

    @staticmethod
    def _point(items: list[tuple[int, float, float]]) -> tuple:
        finite = [value for _, _, value in items if math.isfinite(value)]
        nan = sum(math.isnan(value) for _, _, value in items)
        inf = sum(math.isinf(value) for _, _, value in items)
        mean = math.fsum(value / len(finite) for value in finite) if finite else math.nan
        low, high = (min(finite), max(finite)) if finite else (math.nan, math.nan)
        return (*items[0][:2], low, mean, high, nan, inf, len(items))
