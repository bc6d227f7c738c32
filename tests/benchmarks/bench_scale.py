"""Prints how the cost of a run grows with its ranks: ingest, processor, reads, memory, and the slope of each.

    python tests/benchmarks/bench_scale.py [--ranks 1 2 4 8 16 32 64] [--simulated 128 256 512 1024]
                                           [--layers 1000] [--seconds 2] [--clickhouse] [--dashboards 1]

*shipped*: the journals of all ranks, a real helper, sockets and `dashboard serve`, as in `bench_load.py`; all
steps are written at once, so that helper and server have as much to do as they can. *appended*: the same
records straight into a store, in a process of its own: for more ranks than one machine ships, and for some
of the shipped numbers, to compare with. Each rank has 10 steps for each of `--seconds`; where ranks are few
they have more, so that each point has the values of 64 ranks. Above 16 ranks the helper pools what it ships;
with NANSCOPE_POOL_ABOVE=4096 it does not. *values/s*: of those written, until all was durable. *cpu*:
processor seconds for a million values, of the server (or of the process that appends), and of the helper.
*ms*: the median of five reads of the newest `--seconds`, once the server has left. *rss*: of the server, or
of the process that appends, before the reads. The slopes are least squares over logarithms: 0 does not grow
with the ranks, 1 grows as they do.

`--clickhouse`: the store is a database of a server of its own for each point, whose processor seconds
(*database cpu*) come beside ours. `--dashboards`: so many hosts have the ranks in equal parts, each with a
helper and a dashboard of its own, all in one database; *cpu* and *rss* are of all dashboards together.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import psutil

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "integration"))
sys.path.insert(0, str(Path(__file__).resolve().parent))

from bench_load import (
    RUN,
    Ranks,
    frame_of,
    is_durable,
    layout_of,
    own_clickhouse,
    start_of,
    store_variables,
)
from clickhouse_server import ClickHouseServer, what_is_missing
from forked_scripts import ForkedScripts
from trial import Trial, wait_for

from dashboard.store.clickhouse.store import ClickStore
from dashboard.store.duck import DuckStore
from dashboard.store.protocol import StepRange, Store
from probe.delivery.helper.helper import start_helper
from probe.wire import StreamKey, encode

RATE = 10
"""Steps a second that each rank would make."""
AS_MANY_AS = 64
"""Ranks whose values each point has at least."""
COMPARED = (1, 8, 64)
"""Ranks that are both shipped and appended."""
COMMIT_BYTES = 8 * 1024**2
READS = 5


@dataclass(frozen=True, kw_only=True)
class Point:
    """What was measured with so many ranks."""

    way: str
    ranks: int
    values_s: float
    cpu_s: float
    """For a million values."""
    helper_cpu_s: float
    """The same of the helper; NaN where there is none."""
    database_cpu_s: float
    """The same of ClickHouse; NaN without it."""
    rank_scalars_ms: float
    heatmap_ms: float
    runs_ms: float
    rss_mib: float


MEASURES = {
    "values_s": "values/s",
    "cpu_s": "cpu s",
    "helper_cpu_s": "helper cpu s",
    "database_cpu_s": "database cpu s",
    "rank_scalars_ms": "rank_scalars ms",
    "heatmap_ms": "heatmap ms",
    "runs_ms": "runs ms",
    "rss_mib": "rss MiB",
}


def open_store(clickhouse: ClickHouseServer | None, folder: Path) -> Store:
    """Open the store that all is measured with: in a database of the server, else DuckDB in the folder."""
    if clickhouse is None:
        return DuckStore(folder)
    return ClickStore(clickhouse.url("load"), password=clickhouse.password)


@contextlib.contextmanager
def engine_of(arguments: argparse.Namespace, root: Path) -> Iterator[ClickHouseServer | None]:
    """What keeps the data of one point: a server, or None for DuckDB."""
    with own_clickhouse(root) if arguments.clickhouse else contextlib.nullcontext() as clickhouse:
        yield clickhouse


def database_cpu(clickhouse: ClickHouseServer | None) -> float:
    """Processor seconds of the server until now; NaN without one."""
    return cpu_of(None if clickhouse is None else psutil.Process(clickhouse.pid))


def steps_for(ranks: int, seconds: float) -> int:
    """How many steps each of so many ranks makes."""
    own = max(1, round(RATE * seconds))
    return max(own, own * AS_MANY_AS // ranks)


def reads(store: Store, ranks: int, seconds: float) -> dict[str, float]:
    """Milliseconds of what a page asks for, the newest seconds of it."""
    steps = steps_for(ranks, seconds)
    newest = StepRange(first=steps - max(1, round(RATE * seconds)))

    def of_ranks() -> int:
        return len(store.rank_scalars(RUN, ["loss"], newest).ranks)

    def of_layers() -> int:
        found = store.heatmap(RUN, 0, "grad_norm", newest)
        return 0 if found is None else len(found.rows)

    assert of_ranks() == ranks and of_layers() > 0
    return {
        "rank_scalars_ms": median_ms(of_ranks),
        "heatmap_ms": median_ms(of_layers),
        "runs_ms": median_ms(lambda: len(store.runs())),
    }


def median_ms(read: Callable[[], int]) -> float:
    took = []
    for _ in range(READS):
        began = time.perf_counter()
        read()
        took.append(time.perf_counter() - began)
    return statistics.median(took) * 1e3


def cpu_of(process: psutil.Process | None) -> float:
    """Processor seconds until now; NaN of one that is gone."""
    try:
        return float("nan") if process is None else sum(process.cpu_times()[:2])
    except psutil.Error:
        return float("nan")


class Host:
    """A machine with some ranks, their helper and a dashboard."""

    def __init__(self, root: Path, serves: ForkedScripts, clickhouse: ClickHouseServer | None) -> None:
        self.trial = Trial(root, 0, serves, serves)
        if clickhouse is not None:
            self.trial.environment |= store_variables(clickhouse)
        self.trial.start_server()
        assert self.trial.server is not None
        self.dashboard = psutil.Process(self.trial.server.pid)
        self.helper: psutil.Process | None = None
        self.helper_cpu_s = 0.0

    def begin(self, ranks: int, layers: int, own: range) -> None:
        """Write what the journals begin with, and start the helper."""
        os.environ["XDG_STATE_HOME"] = self.trial.environment["XDG_STATE_HOME"]
        self.load = Ranks(self.trial.spool, ranks, layers, own=own)
        start_helper(self.trial.spool / RUN, None)
        wait_for(lambda: is_durable(self.trial), "the layouts do not become durable")
        pid = self.trial.helper_pid(RUN)
        self.helper = None if pid is None else psutil.Process(pid)

    def is_durable(self) -> bool:
        """Whether the store has all of it; the helper leaves soon after."""
        self.helper_cpu_s = float(np.nanmax([self.helper_cpu_s, cpu_of(self.helper)]))
        return is_durable(self.trial)

    def stop(self) -> None:
        """End the dashboard."""
        assert self.trial.server is not None
        self.trial.server.send_signal(signal.SIGTERM)
        self.trial.server.wait(60)


def ship(
    root: Path,
    serves: ForkedScripts,
    arguments: argparse.Namespace,
    ranks: int,
    clickhouse: ClickHouseServer | None,
) -> Point:
    """Measure journals that helpers ship to dashboards."""
    each = ranks // arguments.dashboards
    hosts: list[Host] = []
    try:
        for number in range(arguments.dashboards):
            (root / str(number)).mkdir()
            hosts.append(Host(root / str(number), serves, clickhouse))
            hosts[-1].begin(ranks, arguments.layers, range(number * each, (number + 1) * each))
        before = sum(cpu_of(host.dashboard) for host in hosts)
        helpers_before = sum(cpu_of(host.helper) for host in hosts)
        of_database = database_cpu(clickhouse)
        began = time.monotonic()
        for _ in range(steps_for(ranks, arguments.seconds)):
            for host in hosts:
                host.load.step()
        for host in hosts:
            host.load.end()
        waiting = list(hosts)
        while waiting := [host for host in waiting if not host.is_durable()]:
            assert time.monotonic() < began + 240, "not all becomes durable"
            time.sleep(0.1)
        took = time.monotonic() - began
        millions = ranks * hosts[0].load.steps * (arguments.layers + 1) / 1e6
        measured = {
            "values_s": millions * 1e6 / took,
            "cpu_s": (sum(cpu_of(host.dashboard) for host in hosts) - before) / millions,
            "helper_cpu_s": (sum(host.helper_cpu_s for host in hosts) - helpers_before) / millions,
            "database_cpu_s": (database_cpu(clickhouse) - of_database) / millions,
            "rss_mib": sum(host.dashboard.memory_info().rss for host in hosts) / 2**20,
        }
        for host in hosts:
            host.stop()
        store = open_store(clickhouse, hosts[0].trial.data)
        try:
            measured |= reads(store, ranks, arguments.seconds)
        finally:
            store.close()
    finally:
        for host in hosts:
            host.trial.close()
    return Point(way="shipped", ranks=ranks, **measured)


def append(
    folder: Path, arguments: argparse.Namespace, ranks: int, clickhouse: ClickHouseServer | None
) -> Point:
    """Measure records that are given to a store in this process."""
    now = time.time_ns()
    store = open_store(clickhouse, folder)
    layout = encode(layout_of(arguments.layers))
    writers = [f"{rank}-{now}" for rank in range(ranks)]
    for rank, writer in enumerate(writers):
        key = StreamKey(run=RUN, writer=writer, stream="events")
        give(store, key, 0, [encode(start_of(rank, ranks, now)), layout])
    store.commit()
    keys = [StreamKey(run=RUN, writer=writer, stream="metrics") for writer in writers]
    values = np.linspace(0.1, 1.0, arguments.layers)
    steps, queued = steps_for(ranks, arguments.seconds), 0
    process = psutil.Process()
    before, of_database, began = cpu_of(process), database_cpu(clickhouse), time.monotonic()
    for step in range(steps):
        data = frame_of(step, values)
        for key in keys:
            give(store, key, step, [data])
            queued += len(data)
            if queued >= COMMIT_BYTES:
                store.commit()
                queued = 0
    store.commit()
    took = time.monotonic() - began
    millions = ranks * steps * (arguments.layers + 1) / 1e6
    measured = {
        "values_s": millions * 1e6 / took,
        "cpu_s": (cpu_of(process) - before) / millions,
        "helper_cpu_s": float("nan"),
        "database_cpu_s": (database_cpu(clickhouse) - of_database) / millions,
        "rss_mib": process.memory_info().rss / 2**20,
    }
    measured |= reads(store, ranks, arguments.seconds)
    store.close()
    return Point(way="appended", ranks=ranks, **measured)


def give(store: Store, key: StreamKey, first_seq: int, records: list[bytes]) -> None:
    """Append; a store that takes no more before a commit gets one."""
    if store.append(key, first_seq, records) == first_seq:
        store.commit()
        assert store.append(key, first_seq, records) == first_seq + len(records)


def append_apart(arguments: argparse.Namespace, ranks: int) -> Point:
    """`append` in a process of its own, whose memory is measured."""
    command = [sys.executable, __file__, "--append", str(ranks), "--layers", str(arguments.layers)]
    command += ["--seconds", str(arguments.seconds)]
    command += ["--clickhouse"] if arguments.clickhouse else []
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, timeout=300)
    return Point(**json.loads(done.stdout))


def slope(points: list[Point], measure: str) -> float:
    """The exponent of growth: least squares over logarithms."""
    if len(points) < 2:
        return float("nan")
    ranks, found = zip(*((point.ranks, getattr(point, measure)) for point in points), strict=True)
    return float(np.polyfit(np.log(ranks), np.log(found), 1)[0])


def row_of(point: Point, shown: Sequence[str]) -> str:
    found = asdict(point)
    return f"| {point.way} | {point.ranks} | " + " | ".join(text_of(found[name]) for name in shown) + " |"


def head_of(first: str, shown: Sequence[str]) -> str:
    """The first two lines of a table."""
    columns = [first, "ranks", *(MEASURES[name] for name in shown)]
    return "| " + " | ".join(columns) + " |\n" + "|---" * len(columns) + "|"


def text_of(value: float) -> str:
    if value != value:
        return ""
    return f"{value:,.0f}" if value >= 100 else f"{value:.2f}" if value < 10 else f"{value:.1f}"


def print_slopes(points: list[Point], shown: Sequence[str]) -> None:
    """A row for what was shipped, and one for what was appended."""
    print("\n" + head_of("slope", shown))
    for way in ("shipped", "appended"):
        these = [point for point in points if point.way == way]
        if len(these) > 1:
            slopes = [slope(these, measure) for measure in shown]
            texts = ["" if one != one else f"{one:+.2f}" for one in slopes]
            print(f"| {way} | {these[0].ranks} to {these[-1].ranks} | " + " | ".join(texts) + " |")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2, 4, 8, 16, 32, 64])
    parser.add_argument("--simulated", type=int, nargs="*", default=[128, 256, 512, 1024])
    parser.add_argument("--layers", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=2.0, help="of training, at 10 steps a second")
    parser.add_argument("--clickhouse", action="store_true", help="in place of DuckDB")
    parser.add_argument("--dashboards", type=int, default=1, help="that share the database, of a host each")
    parser.add_argument("--append", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.clickhouse and (missing := what_is_missing()):
        raise SystemExit(missing)
    if arguments.dashboards > 1 and not arguments.clickhouse:
        parser.error("several dashboards share no file: --dashboards needs --clickhouse")
    if any(ranks % arguments.dashboards for ranks in arguments.ranks):
        parser.error("each of --ranks must be a multiple of --dashboards")
    if arguments.append is not None:
        with tempfile.TemporaryDirectory() as folder, engine_of(arguments, Path(folder)) as clickhouse:
            print(json.dumps(asdict(append(Path(folder), arguments, arguments.append, clickhouse))))
        return
    memory_gib = psutil.virtual_memory().total / 2**30
    print(
        f"{arguments.layers:,} layers, {arguments.seconds:g} s, {os.cpu_count()} cores, {memory_gib:.0f} GiB"
    )
    shown = [name for name in MEASURES if arguments.clickhouse or name != "database_cpu_s"]
    print(head_of("way", shown))
    points: list[Point] = []
    with ForkedScripts("dashboard.serving.server", "dashboard.ingest.spool") as serves:
        for ranks in arguments.ranks:
            with tempfile.TemporaryDirectory() as folder, engine_of(arguments, Path(folder)) as clickhouse:
                points.append(ship(Path(folder), serves, arguments, ranks, clickhouse))
            print(row_of(points[-1], shown), flush=True)
    compared = [ranks for ranks in COMPARED if ranks in arguments.ranks] if arguments.simulated else []
    for ranks in [*compared, *arguments.simulated]:
        points.append(append_apart(arguments, ranks))
        print(row_of(points[-1], shown), flush=True)
    print_slopes(points, shown)


if __name__ == "__main__":
    main()
