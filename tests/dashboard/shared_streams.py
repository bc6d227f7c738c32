"""The same streams for every store, how a helper ships them to collectors by chance, and all that reads show.

As a script it is such a helper, with a store of its own: `shared_streams.py URL SEED`, the password in
NANSCOPE_STORE_PASSWORD. It ends when all is acknowledged, if it was not killed before.
"""

from __future__ import annotations

import math
import random
import sys
import time
from collections.abc import Callable
from dataclasses import is_dataclass
from typing import Any

import numpy as np
import pandas as pd
from msgspec.structs import replace
from store_reference import RUN, SMALL, make_event, make_frame, stream_key

from dashboard.errors import DashboardError
from dashboard.store.protocol import StepRange, Store
from probe.wire import Document, Event, Frame, RunEnd, RunStart, StreamKey, decode_record, encode
from probe.wire.magnitude_bins import BINS
from probe.wire.module_frames import pack_histogram

EVICTED = "evicted"
NAMES = ["loss", "rare", "only before"]
ODD = (math.nan, math.inf, -math.inf)


class Streams:
    """Two ranks, of which rank 0 starts again 100 steps before its end; some of its records are evicted.

    Args:
        seed: Of the values.
        steps: Of each start.
    """

    def __init__(self, seed: int, steps: int = 300) -> None:
        chance = random.Random(seed)
        self.records: dict[StreamKey, list[bytes]] = {}
        self.holes: dict[StreamKey, tuple[int, int]] = {}
        """Numbers that no journal has any more."""
        for rank, incarnation, first in ((0, 1000, 0), (1, 1000, 0), (0, 2000, steps - 100)):
            metrics = stream_key(rank=rank, incarnation=incarnation)
            self.records[stream_key("events", rank=rank, incarnation=incarnation)] = _events(
                rank, incarnation, first=first, end=first + steps
            )
            self.records[metrics] = [
                _frame(chance, step, is_first=incarnation == 1000) for step in range(first, first + steps)
            ]
        self.holes[stream_key(incarnation=1000)] = (steps // 2, steps // 2 + 7)
        self.holes[stream_key(incarnation=2000)] = (40, 43)

    def ship(self, store: Store, key: StreamKey, first: int, most: int) -> int:
        """Give a store a batch as a helper does; return where it continues."""
        hole, records = self.holes.get(key, (-1, -1)), self.records[key]
        if hole[0] <= first < hole[1]:
            return store.skip(key, first, hole[1], EVICTED)
        end = min(first + most, hole[0] if first < hole[0] else len(records))
        return store.append(key, first, records[first:end])

    def ship_all(self, store: Store) -> None:
        """Give a store everything once, in order."""
        for key, records in self.records.items():
            at = 0
            while at < len(records):
                at = self.ship(store, key, at, 60)
                store.commit()

    def ends(self) -> dict[StreamKey, int]:
        return {key: len(records) for key, records in self.records.items()}


def _events(rank: int, incarnation: int, *, first: int, end: int) -> list[bytes]:
    number = rank * 10_000 + incarnation
    events: list[Event] = [
        make_event(
            number + which, step=first + which, rank=rank, kind="custom", message=f"{which}", count=count
        )
        for count in (1, 2, 3)
        for which in range(3)
    ]
    documents = [
        Document(kind="memory", key=str(which % 2), step=first, time=float(which), body=str(which).encode())
        for which in range(4)
    ]
    begin = RunStart(run=RUN, rank=rank, incarnation=incarnation, name="shared", time=float(first))
    over = RunEnd(time=float(end), step=end - 1, outcome="finished")
    return [encode(record) for record in (begin, SMALL, *events, *documents, over)]


def _frame(chance: random.Random, step: int, *, is_first: bool) -> bytes:
    scalars = {"loss": chance.choice(ODD) if chance.random() < 0.05 else float(chance.randrange(1000))}
    if chance.random() < 0.2:
        scalars["rare"] = float(step)
    if is_first and step % 3 == 0:
        scalars["only before"] = float(step)
    norms = [chance.choice(ODD) if chance.random() < 0.03 else chance.random() for _ in SMALL.parameters]
    missing = [chance.random() < 0.1 for _ in SMALL.parameters]
    record = make_frame(step, {"grad_norm": norms}, scalars=scalars, missing=missing)
    if step % 50:
        return record
    found = decode_record(record)
    assert isinstance(found, Frame)
    counts = np.array([[chance.randrange(9) for _ in range(BINS)] for _ in SMALL.parameters], np.int64)
    fields = {name: getattr(found, name) for name in found.__struct_fields__}
    return encode(Frame(**{**fields, "histograms": [pack_histogram("gradient", "parameters", counts)]}))


class Helper:
    """Ships streams to one of several collectors at a time, and goes to another when it likes.

    Args:
        streams: To ship.
        chance: What decides.
        stores: Of the collectors; `None` where one is away.
    """

    def __init__(self, streams: Streams, chance: random.Random, stores: list[Store]) -> None:
        self.streams, self.chance, self.stores = streams, chance, stores
        self._now = 0
        self._at: dict[StreamKey, int] = {}
        self.repeated = 0

    def step(self) -> None:
        """Do one thing: go elsewhere, ship some records of a stream, have a store commit."""
        what = self.chance.random()
        if what < 0.1:
            self._now = self.chance.randrange(len(self.stores))
            self._at.clear()
        elif what < 0.3:
            # A collector that its helper has left may still commit what it has.
            self.chance.choice(self.stores).commit()
        else:
            self._ship(self.stores[self._now])

    def leave(self) -> None:
        """The connection is lost: ask again where to continue."""
        self._at.clear()

    def _ship(self, store: Store) -> None:
        key = self.chance.choice([*self.streams.records])
        events = replace(key, stream="events")
        if self._asked(store, events) < 2:
            key = events  # what names the rows of its frames comes first
        first = self._asked(store, key)
        if self.chance.random() < 0.3:
            first = self.chance.randint(0, first)
        first = min(first, len(self.streams.records[key]) - 1)
        hole = self.streams.holes.get(key, (0, 0))
        if hole[0] < first < hole[1]:
            first = hole[0]
        self.repeated += max(0, min(self._at[key], first + 60) - first)
        self._at[key] = max(self._at[key], self.streams.ship(store, key, first, self.chance.randint(1, 60)))

    def _asked(self, store: Store, key: StreamKey) -> int:
        if key not in self._at:
            self._at[key] = store.position(key).next_seq
        return self._at[key]

    def is_done(self, store: Store) -> bool:
        """Whether a store has acknowledged everything."""
        return all(store.position(key).next_seq == end for key, end in self.streams.ends().items())

    def finish(self, store: Store) -> None:
        """Ship what is left, in order."""
        for key, end in self.streams.ends().items():
            at = store.position(key).next_seq
            while at < end:
                at = self.streams.ship(store, key, at, 60)
        store.commit()
        assert self.is_done(store)


def everything(store: Store, run: str = RUN) -> dict[str, Any]:
    """All that reads show of a run, in a form that `alike` compares; times of arrival are left out."""
    found: dict[str, Any] = {
        "runs": store.runs(),
        "events": store.events(run),
        "documents": {kind: store.documents(run, kind) for kind in store.document_kinds(run)},
        "positions": store.positions(run),
        "gaps": store.gaps(run),
    }
    for rank in (0, 1):
        found[f"starts {rank}"] = store.starts(run, rank)
        found[f"layout {rank}"] = store.layout(run, rank)
        found[f"names {rank}"] = store.scalar_names(run, rank), store.statistic_names(run, rank)
        for steps in (StepRange(), StepRange(first=33, end=290), StepRange(first=190, end=215)):
            for points in (10**6, 40, 3):
                where = f"{rank} [{steps.first}, {steps.end}) {points}"
                found[f"scalars {where}"] = store.scalars(run, rank, NAMES, steps, points)
                found[f"heatmap {where}"] = store.heatmap(run, rank, "grad_norm", steps, points)
        for subject in store.histogram_subjects(run, rank):
            found[f"histograms {rank} {subject}"] = store.histograms(run, rank, subject)
    for columns in (10**6, 30, 2):
        found[f"ranks {columns}"] = store.rank_scalars(run, NAMES, StepRange(), columns)
    return found


def differences(one: dict[str, Any], other: dict[str, Any]) -> list[str]:
    """What is not the same, and where it begins; NaN is NaN, and means may differ by their rounding."""
    found = []
    for name in sorted(one.keys() | other.keys()):
        texts = [repr(_plain(each.get(name))) for each in (one, other)]
        if texts[0] != texts[1]:
            at = next((i for i, pair in enumerate(zip(*texts, strict=False)) if pair[0] != pair[1]), 0)
            found.append(f"{name}: " + " and ".join(text[max(0, at - 60) : at + 60] for text in texts))
    return found


def _plain(value: Any) -> Any:
    """Return it as what compares by its bits."""
    if is_dataclass(value) and not isinstance(value, type):
        return {name: _field(name, getattr(value, name)) for name in value.__dataclass_fields__}
    if isinstance(value, pd.DataFrame):
        return {name: _field(name, value[name].to_numpy()) for name in value.columns}
    if isinstance(value, np.ndarray):
        return value.shape, [repr(one) for one in value.ravel().tolist()]
    if isinstance(value, dict):
        return {name: _plain(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    return value


def _field(name: str, value: Any) -> Any:
    """Return a column; means are sums in another order."""
    if name == "mean":
        return value.shape, [f"{one:.12g}" for one in value.ravel().tolist()]
    return _plain(value)


def patient(act: Callable[[], None], timeout_s: float = 60.0) -> None:
    """Do something again while the server is away."""
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            return act()
        except DashboardError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.02)


def main() -> None:
    from dashboard.store.clickhouse.store import ClickStore

    url, seed = sys.argv[1:]
    opened: list[ClickStore] = []
    patient(lambda: opened.append(ClickStore(url, clock=lambda: 0.0)))
    (store,) = opened
    helper = Helper(Streams(0), random.Random(int(seed)), [store])

    def act() -> None:
        try:
            helper.step()
        except DashboardError:
            helper.leave()
            raise

    print("begins", flush=True)
    while True:
        patient(act)


if __name__ == "__main__":
    main()
