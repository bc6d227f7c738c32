"""Prints how a dashboard stands many ranks of a large model: ingest, lag, event to page, with many readers.

    python tests/benchmarks/bench_load.py [--ranks 8 64] [--readers 1 10 50] [--seconds 12]
                                          [--clickhouse | --replicas]

One process writes the journals of all ranks, as their recorders would, each step one frame of a value per
layer; a real helper ships them to a real `dashboard serve`, where the readers are WebSocket clients. *k/s*:
thousands of values a second, as they were written, and until the last of them was durable. *lag*: how long
after the last write that was. *event*: from its write to the message that counts it, on each reader.
*screen*: from its write to the frame in which Chromium's list of events shows it; this page is one more
reader, with its charts and heatmap. Without Chromium it is left out. `--clickhouse`: the store is a database
of a server that is started for each row; `--replicas`: of two servers with the same rows, and a ZooKeeper.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from playwright.sync_api import Page, sync_playwright

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "integration"))

import zookeeper_server
from clickhouse_server import ClickHouseServer, replicas_url, what_is_missing
from forked_scripts import ForkedScripts
from page_clients import PageClients
from trial import Trial, ends_of, wait_for
from zookeeper_server import ZooKeeper

from dashboard.errors import DashboardError
from probe.delivery.helper.helper import start_helper
from probe.delivery.journal.journal import JournalWriter
from probe.delivery.journal.run_json import write_run_json
from probe.wire import Event, Frame, LayerInfo, Layout, ParameterInfo, RunEnd, RunStart, encode, event_id
from probe.wire.columns import pack_column

CHROMIUM = next(filter(None, map(shutil.which, ("chromium-headless-shell", "chromium"))), None)
WATCH = """() => {
    window.shown = [];
    new MutationObserver(() => {
        const count = parseInt(document.getElementById("events-count")?.textContent ?? "");
        if (count > window.shown.length) requestAnimationFrame(() => {
            while (window.shown.length < count) window.shown.push(Date.now() / 1000);
        });
    }).observe(document.body, { subtree: true, childList: true, characterData: true });
}"""
"""When the list's count had reached each number, after the frame was begun that shows it."""
RUN = "load"
EVENT_S = 0.5


def start_of(rank: int, ranks: int, incarnation: int) -> RunStart:
    """What a rank's journal begins with."""
    return RunStart(
        run=RUN,
        rank=rank,
        incarnation=incarnation,
        world_size=ranks,
        pid=os.getpid(),
        time=incarnation / 1e9,
    )


def layout_of(layers: int) -> Layout:
    """The layout of a model whose layers have one parameter each."""
    names = [f"blocks.{index}" for index in range(layers)]
    return Layout(
        layout=0,
        model="net",
        parameters=[
            ParameterInfo(name=f"{name}.weight", shape=[8, 8], dtype="float32", layer=index)
            for index, name in enumerate(names)
        ],
        layers=[LayerInfo(name=name, type="Linear") for name in names],
    )


def frame_of(step: int, values: npt.NDArray[np.float64]) -> bytes:
    """A step's frame, encoded: the loss, and a value of each layer."""
    column = pack_column("grad_norm", values * (1 + step % 7))
    return encode(Frame(step=step, time=time.time(), scalars={"loss": 1 / (1 + step)}, columns=[column]))


class Ranks:
    """Journals of ranks of a run that is being trained.

    Args:
        spool: where they are written.
        ranks: of the run.
        layers: of its model.
        own: those that are written here; None: all.
    """

    def __init__(self, spool: Path, ranks: int, layers: int, *, own: range | None = None) -> None:
        now = time.time_ns()
        self.values = np.linspace(0.1, 1.0, layers)
        self.event_times: list[float] = []
        self.event_clocks: list[float] = []
        self.steps = 0
        self.starts = [start_of(rank, ranks, now) for rank in own or range(ranks)]
        layout = encode(layout_of(layers))
        self.journals = []
        for start in self.starts:
            writer = f"{start.rank}-{now}"
            journal = JournalWriter(spool / RUN / writer, run=RUN, writer=writer)
            write_run_json(spool / RUN, start)
            journal.append_many("events", [encode(start), layout])
            self.journals.append(journal)

    def step(self) -> None:
        """One step of all ranks."""
        data = frame_of(self.steps, self.values)
        for journal in self.journals:
            journal.append("metrics", data)
        self.steps += 1

    def event(self) -> None:
        """An event of the first rank."""
        incarnation = self.starts[0].incarnation
        name = event_id(
            run=RUN, rank=0, incarnation=incarnation, model="", kind="custom", subject="", step=self.steps
        )
        facts: dict[str, Any] = {"kind": "custom", "severity": "info", "message": f"at step {self.steps}"}
        event = Event(
            id=name, run=RUN, rank=0, incarnation=incarnation, step=self.steps, time=time.time(), **facts
        )
        self.event_times.append(time.monotonic())
        self.event_clocks.append(event.time)
        self.journals[0].append("events", encode(event))

    def end(self) -> None:
        """All ranks end."""
        for journal in self.journals:
            journal.append(
                "events", encode(RunEnd(time=time.time(), step=self.steps - 1, outcome="finished"))
            )
            journal.close()


class Arrivals:
    """When each reader first heard of so many events."""

    def __init__(self, ranks: Ranks) -> None:
        self.ranks = ranks
        self.delays_s: list[float] = []

    def reader(self) -> Any:
        """A callback for one reader's headers."""
        seen = 0

        def hear(header: Any) -> None:
            nonlocal seen
            count = sum((header.get("eventCounts") or {}).values())
            now = time.monotonic()
            times = self.ranks.event_times[seen:count]
            seen = max(seen, count)
            self.delays_s += [now - at for at in times]

        return hear


@contextlib.contextmanager
def browser_page(url: str) -> Iterator[Page | None]:
    """A page that shows the run's events, and notes when it does; None without Chromium.

    Args:
        url: with the token.
    """
    if CHROMIUM is None:
        yield None
        return
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=CHROMIUM,
            args=["--no-sandbox", "--disable-gpu", "--disable-background-networking"],
        )
        page = browser.new_page(viewport={"width": 1440, "height": 900})
        page.goto(url)
        page.locator("#tab-events").click()
        page.evaluate(WATCH)
        yield page
        browser.close()


def on_screen(page: Page | None, load: Ranks) -> list[float]:
    """Seconds from each event's write to the frame that shows it."""
    if page is None:
        return [float("nan")]
    shown: list[float] = page.evaluate("window.shown")
    return [at - written for at, written in zip(shown, load.event_clocks, strict=False)]


@contextlib.contextmanager
def own_clickhouse(root: Path, keeper: ZooKeeper | None = None) -> Iterator[ClickHouseServer]:
    """A server whose data are removed with the folder."""
    server = ClickHouseServer(
        root / "clickhouse", password="hush", keeper=None if keeper is None else keeper.port
    )
    server.start()
    try:
        yield server
    finally:
        server.stop()


@contextlib.contextmanager
def own_replicas(root: Path) -> Iterator[list[ClickHouseServer]]:
    """Two servers with the same rows, and their ZooKeeper."""
    keeper = ZooKeeper(root / "keeper")
    keeper.start()
    try:
        with own_clickhouse(root / "one", keeper) as one, own_clickhouse(root / "two", keeper) as two:
            yield [one, two]
    finally:
        keeper.stop()


def store_variables(*servers: ClickHouseServer) -> dict[str, str]:
    """What has `serve` keep its data in a database of a server, or of replicas."""
    url = replicas_url(servers, "load") if len(servers) > 1 else servers[0].url("load")
    return {"NANSCOPE_STORE": url, "NANSCOPE_STORE_PASSWORD": servers[0].password}


@contextlib.contextmanager
def kept(root: Path, arguments: argparse.Namespace) -> Iterator[dict[str, str]]:
    """What is started for a row; yields what tells `serve` of it."""
    if arguments.replicas:
        with own_replicas(root) as servers:
            yield store_variables(*servers)
    elif arguments.clickhouse:
        with own_clickhouse(root) as server:
            yield store_variables(server)
    else:
        yield {}


def measure(
    root: Path, serves: ForkedScripts, arguments: argparse.Namespace, ranks: int, readers: int
) -> str:
    """One row of the table."""
    trial = Trial(root, 0, serves, serves)
    os.environ["XDG_STATE_HOME"] = trial.environment["XDG_STATE_HOME"]
    with kept(root, arguments) as variables:
        trial.environment |= variables
        return measured(trial, arguments, ranks, readers)


def measured(trial: Trial, arguments: argparse.Namespace, ranks: int, readers: int) -> str:
    """One row of the table, of a trial that nothing has been started of."""
    trial.start_server()
    load = Ranks(trial.spool, ranks, arguments.layers)
    start_helper(trial.spool / RUN, None)
    arrivals = Arrivals(load)
    place = lambda: (trial.client().url, trial.token())  # noqa: E731
    pages = [PageClients(place, 1, arrivals.reader()) for _ in range(readers)]
    url = f"http://127.0.0.1:{trial.page_port}/?token={trial.token()}&run={RUN}"
    try:
        for page in pages:
            page.start()
        wait_for(lambda: all(page.messages for page in pages), "the readers hear nothing")
        with browser_page(url) as browser:
            took = write(load, arguments.rate, arguments.seconds)
            load.end()
            ended = time.monotonic()
            wait_for(lambda: is_durable(trial), "not all becomes durable", 240)
            lag = time.monotonic() - ended
            screens = on_screen(browser, load)
    finally:
        for page in pages:
            page.stopping.set()
        for page in pages:
            page.stop()
        trial.close()
    written = ranks * load.steps * (arguments.layers + 1)
    heard, seen = (
        " | ".join(f"{value:,.0f}" for value in np.percentile(np.array(delays) * 1e3, [50, 95, 99]))
        for delays in (arrivals.delays_s or [np.nan], screens or [np.nan])
    )
    durable = written / (took + lag) / 1e3
    return (
        f"| {ranks} | {readers} | {written / took / 1e3:,.0f} | {durable:,.0f} | {lag:.1f} "
        f"| {heard} | {len(arrivals.delays_s):,} | {seen} | {len(screens)} |"
    )


def write(load: Ranks, rate: float, seconds: float) -> float:
    """Write steps at a rate and an event each half second; return how long it took."""
    began = time.monotonic()
    next_event = began + 1.0
    while (now := time.monotonic()) < began + seconds:
        load.step()
        if now >= next_event:
            load.event()
            next_event += EVENT_S
        time.sleep(max(0.0, began + load.steps / rate - time.monotonic()))
    return time.monotonic() - began


def is_durable(trial: Trial) -> bool:
    """Whether the store has all that the ranks wrote."""
    try:
        delivery = trial.client()._json("GET", f"api/v1/runs/{RUN}/delivery")
    except DashboardError:
        return False
    reached = {(one["writer"], one["stream"]): one["next_seq"] for one in delivery["positions"]}
    ends = {key: end for key, end in ends_of(trial.spool / RUN).items() if not key[0].startswith("host")}
    return all(reached.get(key, 0) >= end for key, end in ends.items())


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ranks", type=int, nargs="+", default=[8, 64])
    parser.add_argument("--readers", type=int, nargs="+", default=[1, 10, 50])
    parser.add_argument("--layers", type=int, default=1000)
    parser.add_argument("--rate", type=float, default=5.0, help="steps a second of every rank")
    parser.add_argument("--seconds", type=float, default=12.0)
    engine = parser.add_mutually_exclusive_group()
    engine.add_argument("--clickhouse", action="store_true", help="in place of DuckDB")
    engine.add_argument("--replicas", action="store_true", help="the same on two servers, through ZooKeeper")
    arguments = parser.parse_args()
    missing = what_is_missing() if arguments.clickhouse or arguments.replicas else None
    if missing := missing or (zookeeper_server.what_is_missing() if arguments.replicas else None):
        raise SystemExit(missing)
    asked = f"{arguments.layers:,} layers, {arguments.rate:g} steps/s, {arguments.seconds:g} s"
    print(f"{asked}, {os.cpu_count()} cores")
    event = "event ms p50 | p95 | p99 | events seen | screen ms p50 | p95 | p99 | events shown"
    print(f"| ranks | readers | k/s written | k/s durable | lag s | {event} |")
    print("|---" * 13 + "|")
    modules = ("dashboard.serving.server", "dashboard.ingest.spool")
    with ForkedScripts(*modules) as serves:
        for ranks in arguments.ranks:
            for readers in arguments.readers:
                with tempfile.TemporaryDirectory() as folder:
                    print(measure(Path(folder), serves, arguments, ranks, readers), flush=True)


if __name__ == "__main__":
    main()
