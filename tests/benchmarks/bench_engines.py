"""Prints how DuckDB and ClickHouse stand the same work: ingest, the page's reads, bytes on disk, memory.

    python tests/benchmarks/bench_engines.py [--points 2e7 ..] [--ingests 3] [--reads 15] [--engines duckdb]

Starts a ClickHouse server of its own (`apt-get install --no-install-recommends clickhouse-server`). The
engines take turns in everything that is timed, so that other work on the machine disturbs both alike. A value
is what a rank has sent: one statistic of one layer at one step, or one scalar. Runs to be read are filled as
any run is, by `append` and `commit`, from one pool of random numbers, and some of what is read is compared
with numpy. Raw rows are all kept: `--points 1e8` needs 2 GB of disk, `5e8` 10 GB. *Ours* is this process,
*server* ClickHouse's.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import psutil

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from clickhouse_server import ClickHouseServer, what_is_missing

from dashboard.store.base import StoreBase
from dashboard.store.clickhouse.store import ClickStore
from dashboard.store.duck import DuckStore
from dashboard.store.engines import ServedStore
from probe.wire import Event, Frame, LayerInfo, Layout, ParameterInfo, RunStart, StreamKey, encode
from probe.wire.columns import pack_column

LAYERS = 1000
STATISTICS = ("grad_norm", "grad_max_abs", "grad_mean", "grad_std")
SCALARS = ("loss", "loss_raw", "grad_norm", "step_time_s", "samples")
RANKS = 64
EVENTS = 500
ALL_RAW = 10**9
POOL = 1_000_003
CHECKED = 25


class Values:
    """What ranks send, by step; no two frames are alike."""

    def __init__(self) -> None:
        self.pool = np.random.default_rng(0).lognormal(size=POOL + LAYERS).astype(np.float32)
        self.scalars = np.random.default_rng(1).random((1009, len(SCALARS)))

    def layers(self, step: int, place: int = 0) -> npt.NDArray[np.float32]:
        """One statistic of all layers at a step."""
        start = (step * 7919 + place * 127_031) % POOL
        return self.pool[start : start + LAYERS]

    def scalar(self, steps: npt.NDArray[np.int64], name: str) -> npt.NDArray[np.float64]:
        """A scalar at steps."""
        return self.scalars[steps % 1009, SCALARS.index(name)]

    def frame(self, step: int, statistics: tuple[str, ...]) -> bytes:
        """An encoded frame."""
        columns = [pack_column(name, self.layers(step, place)) for place, name in enumerate(statistics)]
        named = dict(zip(SCALARS, self.scalars[step % 1009].tolist(), strict=True))
        return encode(Frame(step=step, time=float(step), scalars=named, columns=columns))


class Duck:
    """The embedded file."""

    name = "DuckDB"

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def open(self, place: str) -> ServedStore:
        """Open the store of a name."""
        return DuckStore(self._folder / place, raw_steps=ALL_RAW)

    def settle(self) -> None:
        """Nothing goes on behind a commit."""

    def server(self) -> tuple[float, int]:
        """CPU seconds and resident bytes of the server."""
        return 0.0, 0

    def size(self, place: str) -> int:
        """Bytes on disk, of a store that is closed."""
        return sum(path.stat().st_size for path in (self._folder / place).iterdir() if path.is_file())

    def drop(self, place: str) -> None:
        """Remove a store that is closed."""
        shutil.rmtree(self._folder / place)


class Click:
    """A server, with a database for each store."""

    name = "ClickHouse"

    def __init__(self, folder: Path) -> None:
        self.process = ClickHouseServer(folder)
        self.process.start()

    def open(self, place: str) -> ServedStore:
        """Open the store of a name."""
        return ClickStore(self.process.url(place), password=self.process.password, raw_steps=ALL_RAW)

    def settle(self) -> None:
        """Wait until nothing is merged, which the server does after commits."""
        quiet = 0
        while quiet < 5:
            quiet = 0 if self.process.ask("SELECT count() FROM system.merges")[0][0] else quiet + 1
            time.sleep(0.1)

    def server(self) -> tuple[float, int]:
        """CPU seconds and resident bytes of the server."""
        process = psutil.Process(self.process.pid)
        spent = process.cpu_times()
        return spent.user + spent.system, process.memory_info().rss

    def size(self, place: str) -> int:
        """Bytes of the parts in use."""
        query = f"SELECT sum(bytes_on_disk) FROM system.parts WHERE active AND database = '{place}'"
        return int(self.process.ask(query)[0][0])

    def drop(self, place: str) -> None:
        """Remove a store that is closed."""
        self.process.ask(f"DROP DATABASE {place}")


Engine = Duck | Click


def make_layout() -> Layout:
    names = [f"blocks.{index}" for index in range(LAYERS)]
    parameters = [
        ParameterInfo(name=f"{name}.weight", shape=[8, 8], dtype="float32", layer=index)
        for index, name in enumerate(names)
    ]
    layers = [LayerInfo(name=name, type="Linear") for name in names]
    return Layout(layout=0, model="net", parameters=parameters, layers=layers)


def make_event(number: int, step: int) -> bytes:
    facts: dict[str, Any] = {"kind": "custom", "severity": "info", "message": f"at step {step}"}
    name = f"{number:016x}"
    return encode(Event(id=name, run="deep", rank=0, incarnation=1, step=step, time=float(step), **facts))


def begin(store: ServedStore, run: str, ranks: int) -> list[StreamKey]:
    """Start all ranks of a run; return where their metrics go."""
    layout = encode(make_layout())
    for rank in range(ranks):
        start = RunStart(run=run, rank=rank, incarnation=1, world_size=ranks, time=time.time())
        key = StreamKey(run=run, writer=f"{rank}-1", stream="events")
        store.append(key, 0, [encode(start), layout])
    store.commit()
    return [StreamKey(run=run, writer=f"{rank}-1", stream="metrics") for rank in range(ranks)]


def taken(store: ServedStore, key: StreamKey, first: int, frames: list[bytes]) -> None:
    """Append, all of it."""
    end = store.append(key, first, frames)
    assert end == first + len(frames), f"{key} was not taken"


# -- ingest


def ingest(engine: Engine, run: str, ranks: int, batches: list[list[bytes]]) -> tuple[float, ...]:
    """Have a run taken, a commit after each batch of every rank's frames; everything per value.

    Returns:
        Seconds until all was durable, median and longest of a commit, our CPU seconds and the server's.
    """
    store = engine.open("ingest")
    keys = begin(store, run, ranks)
    ours, (server, _), began = time.process_time(), engine.server(), time.perf_counter()
    commits, first = [], 0
    for batch in batches:
        for key in keys:
            taken(store, key, first, batch)
        first += len(batch)
        committing = time.perf_counter()
        store.commit()
        commits.append(time.perf_counter() - committing)
    spent, cpu = time.perf_counter() - began, time.process_time() - ours
    store.close()
    engine.settle()
    return spent, float(np.median(commits)), max(commits), cpu, engine.server()[0] - server


def measure_ingest(engines: list[Engine], rounds: int, values: Values) -> None:
    """One rank with 100 steps a commit, many ranks with 5."""
    print(
        "\n| ranks | engine | k values/s durable: median (lowest to highest) | commit ms median | longest "
        "| CPU s per 1e6: ours | server |"
    )
    print("|---" * 7 + "|")
    for ranks, steps, count in ((1, 100, 8), (RANKS, 5, 4)):
        frames = [values.frame(step, STATISTICS) for step in range(steps * count)]
        batches = [frames[start : start + steps] for start in range(0, len(frames), steps)]
        sent = ranks * len(frames) * (LAYERS * len(STATISTICS) + len(SCALARS))
        found: dict[str, list[tuple[float, ...]]] = {engine.name: [] for engine in engines}
        for number in range(rounds):
            for engine in engines:
                found[engine.name].append(ingest(engine, f"ingest-{ranks}-{number}", ranks, batches))
        for name, rows in found.items():
            spent, commit, longest, ours, server = np.array(rows).T
            rates = sent / spent / 1e3
            print(
                f"| {ranks} | {name} | {np.median(rates):,.0f} ({rates.min():,.0f} to {rates.max():,.0f}) "
                f"| {np.median(commit) * 1e3:,.0f} | {longest.max() * 1e3:,.0f} "
                f"| {np.median(ours) / sent * 1e6:.2f} | {np.median(server) / sent * 1e6:.2f} |",
                flush=True,
            )
    for engine in engines:
        engine.drop("ingest")


# -- reads


def fill(engine: Engine, place: str, points: int, values: Values) -> float:
    """Fill a run of one rank with layers, and one of many ranks with scalars; return the seconds."""
    began = time.perf_counter()
    store = engine.open(place)
    (key,) = begin(store, "deep", 1)
    steps = points // LAYERS
    for first in range(0, steps, 2000):
        for start in range(first, min(steps, first + 2000), 250):
            end = min(steps, start + 250)
            taken(store, key, start, [values.frame(step, ("grad_norm",)) for step in range(start, end)])
        store.commit()
    events = [make_event(number, number * steps // EVENTS) for number in range(EVENTS)]
    taken(store, StreamKey(run="deep", writer="0-1", stream="events"), 2, events)
    keys = begin(store, "wide", RANKS)
    many = wide_steps(points)
    for first in range(0, many, 500):
        frames = [values.frame(step, ()) for step in range(first, min(many, first + 500))]
        for key in keys:
            taken(store, key, first, frames)
        store.commit()
    store.close()
    return time.perf_counter() - began


def wide_steps(points: int) -> int:
    """Steps of the run with many ranks: its scalars are a tenth of all values, and no more than 4e6."""
    return min(points // 10, 4 * 10**6) // (RANKS * len(SCALARS))


def views(store: ServedStore) -> dict[str, Callable[[], object]]:
    """What the page asks for."""
    names = list(SCALARS)
    return {
        f"scalars, {len(SCALARS)} names, 1,000 points": lambda: store.scalars("deep", 0, names),
        f"heatmap, {LAYERS:,} layers, 300 columns": lambda: store.heatmap("deep", 0, max_columns=300),
        f"rank_scalars, {RANKS} ranks, 300 columns": lambda: store.rank_scalars(
            "wide", ["loss", "step_time_s"], max_columns=300
        ),
        f"events, {EVENTS}, after a change": lambda: events_anew(store),
        "runs": store.runs,
    }


def events_anew(store: ServedStore) -> list[Event]:
    """The run's events, as if another had come: otherwise they are in memory."""
    assert isinstance(store, StoreBase)
    store._shelf.forget("deep")
    return store.events("deep")


def check(store: ServedStore, points: int, values: Values) -> None:
    """Compare columns and points of the views with numpy."""
    chance = np.random.default_rng(2)
    steps = points // LAYERS
    picture = store.heatmap("deep", 0, max_columns=300)
    assert picture is not None and picture.values.shape[0] == LAYERS
    for column in chance.choice(len(picture.steps), CHECKED).tolist():
        first = int(picture.steps[column])
        inside = range(max(0, first), min(steps, first + picture.steps_per_column))
        wanted = np.max([values.layers(step) for step in inside], axis=0)
        assert np.array_equal(picture.values[:, column], wanted), f"column {column} of the heatmap"
    series = store.scalars("deep", 0, list(SCALARS))
    for name, part in series.groupby("name"):
        assert int(part["pooled"].sum()) == steps, f"{name} has {part['pooled'].sum()} of {steps} steps"
        for point in part.sample(CHECKED, random_state=3).itertuples():
            wanted = values.scalar(np.arange(point.step, point.step + point.pooled), str(name))
            found = (point.min, point.mean, point.max)
            assert np.allclose(found, (wanted.min(), wanted.mean(), wanted.max())), f"{name} at {point.step}"
    wide = store.rank_scalars("wide", ["loss"], max_columns=300)
    loss = wide.series["loss"]
    for column in chance.choice(len(wide.steps), CHECKED).tolist():
        first = int(wide.steps[column])
        inside = np.arange(first, min(wide_steps(points), first + wide.steps_per_column))
        wanted = values.scalar(inside, "loss")
        assert np.allclose(loss.mean[:, column], wanted.mean()), f"column {column} of the ranks"
        assert np.array_equal(loss.largest[:, column], np.full(RANKS, wanted.max()))
    counts = len(store.events("deep")), len(store.runs())
    assert counts == (EVENTS, 2), counts


def timed(action: Callable[[], object]) -> float:
    began = time.perf_counter()
    action()
    return (time.perf_counter() - began) * 1e3


def measure_reads(engines: list[Engine], points: int, reads: int, values: Values) -> Iterator[str]:
    """Yield rows of the table, for a run of so many values."""
    place, filled, sizes, stores = f"points{points}", [], [], []
    sent = points // LAYERS * (LAYERS + len(SCALARS)) + wide_steps(points) * RANKS * len(SCALARS)
    for engine in engines:
        filled.append(fill(engine, place, points, values))
        engine.settle()
        sizes.append(engine.size(place) / sent)
    opened = [timed(lambda engine=engine: stores.append(engine.open(place))) for engine in engines]
    for store in stores:
        check(store, points, values)
    yield row(points, "filled, k values/s", [f"{sent / spent / 1e3:,.0f}" for spent in filled])
    yield row(points, "bytes a value on disk", [f"{size:.1f}" for size in sizes])
    yield row(points, "opened, ms", [f"{spent:,.0f}" for spent in opened])
    actions = [views(store) for store in stores]
    for name in actions[0]:
        spent: list[list[float]] = [[] for _ in engines]
        for number in range(reads + 1):
            for place_of, asked in enumerate(actions):
                took = timed(asked[name])
                if number:
                    spent[place_of].append(took)
        cells = [f"{np.median(times):,.1f} / {np.percentile(times, 95):,.1f}" for times in spent]
        yield row(points, f"{name}, ms p50 / p95", cells)
    for engine, store in zip(engines, stores, strict=True):
        store.close()
        engine.drop(place)


def row(points: int, what: str, cells: list[str]) -> str:
    return f"| {points:.0e} | {what} | {' | '.join(cells)} |".replace("e+0", "e")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--points", type=float, nargs="*", default=[2e7], help="layer values of runs to read")
    parser.add_argument("--ingests", type=int, default=3, help="rounds of ingest; 0: none")
    parser.add_argument("--reads", type=int, default=15, help="of each view")
    parser.add_argument("--engines", nargs="+", choices=("duckdb", "clickhouse"))
    arguments = parser.parse_args()
    chosen = arguments.engines or ["duckdb", "clickhouse"]
    if "clickhouse" in chosen and (missing := what_is_missing()):
        raise SystemExit(missing)
    values = Values()
    folder = Path(tempfile.mkdtemp(prefix="bench-engines-"))
    engines: list[Engine] = []
    if "duckdb" in chosen:
        engines.append(Duck(folder / "duck"))
    click = Click(folder / "click") if "clickhouse" in chosen else None
    engines += [click] if click else []
    load = " ".join(f"{number:.1f}" for number in os.getloadavg())
    print(f"{os.cpu_count()} cores, load {load}, {psutil.virtual_memory().total / 2**30:.0f} GiB")
    try:
        if arguments.ingests:
            measure_ingest(engines, arguments.ingests, values)
        if arguments.points:
            print(f"\n| layer values | what | {' | '.join(engine.name for engine in engines)} |")
            print("|---" * (2 + len(engines)) + "|")
            for points in arguments.points:
                for line in measure_reads(engines, int(points), arguments.reads, values):
                    print(line, flush=True)
        ours = psutil.Process().memory_info().rss
        server = max(engine.server()[1] for engine in engines)
        print(f"\nresident at the end: ours {ours / 2**20:,.0f} MiB, server {server / 2**20:,.0f} MiB")
    finally:
        if click:
            click.process.stop()
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
