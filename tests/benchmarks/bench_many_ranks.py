"""What the page costs on a live run of many ranks: messages, the browser's main thread, the server, memory.

    python tests/benchmarks/bench_many_ranks.py [--ranks 1024] [--layers 50] [--rate 1] [--clickhouse]

One process serves and is fed records of all ranks, straight into its store: a value of each layer and five
scalars a step, one rank slow, NaN beginning in one. A real Chromium looks at Overview, then at Ranks.
*first*: from opening the page to the first chart, or from the click to the rows. *kB*: of messages before
compression. *main*: of the browser's main thread; *long*: tasks above 50 ms, how many a second and the
longest. *server*: processor time above *fed*, what the process takes with no page; percent of a core.
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from playwright.sync_api import Page, sync_playwright

TESTS = Path(__file__).parents[1]
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-headless-shell")
sys.path[:0] = [str(TESTS / "dashboard"), str(TESTS), str(TESTS.parent)]
LONG_TASKS = """() => {
    window.longTasks = [];
    new PerformanceObserver((list) => {
        for (const entry of list.getEntries()) window.longTasks.push(entry.duration);
    }).observe({ type: "longtask" });
}"""
COMMIT_BYTES = 4 * 1024**2


class Feed:
    """Records of all ranks of one run, appended to a store.

    Args:
        slow, bad: Ranks that are slower than the others, and that go NaN first.
    """

    def __init__(self, store: Any, *, ranks: int, layers: int, step_s: float, began: float) -> None:
        import page_runs

        from probe.wire import LayerInfo, Layout, ParameterInfo, encode

        self._store, self._ranks, self._step_s, self._began = store, ranks, step_s, began
        self._encode, self._runs = encode, page_runs
        self.slow, self.bad = ranks // 2, ranks * 3 // 4
        self.bad_from = 2**62
        self._draw = np.random.default_rng(0)
        self._depth = 10.0 ** np.linspace(0, -2.5, layers)
        names = [f"blocks.{at // 4}.{('norm', 'attn', 'up', 'down')[at % 4]}" for at in range(layers)]
        layout = Layout(
            layout=0,
            model="Transformer",
            parameters=[
                ParameterInfo(name=f"{name}.weight", shape=[8, 8], dtype="float32", layer=at)
                for at, name in enumerate(names)
            ],
            layers=[LayerInfo(name=name, type="Linear") for name in names],
        )
        for rank in range(ranks):
            start = page_runs.run_start(
                rank=rank, host=f"node{rank // 8:03}", world_size=ranks, time=began, name="train.py"
            )
            store.append(page_runs.key("events", rank=rank), 0, [encode(start), encode(layout)])
        store.commit()
        self._keys = [page_runs.key("metrics", rank=rank) for rank in range(ranks)]

    def steps(self, steps: range, *, is_committed: bool = True) -> None:
        """All ranks, step after step; the last ones may wait for the next commit."""
        queued = 0
        for step in steps:
            for key, data in zip(self._keys, self._frames(step), strict=True):
                self._store.append(key, step, [data])
                queued += len(data)
                if queued >= COMMIT_BYTES:
                    self._store.commit()
                    queued = 0
        if is_committed:
            self._store.commit()

    def _frames(self, step: int) -> Iterator[bytes]:
        from probe.wire import Frame
        from probe.wire.columns import pack_column

        noise = self._draw.standard_normal((3, self._ranks))
        column = pack_column(
            "grad_norm", self._depth * np.exp(0.1 * self._draw.standard_normal(len(self._depth)))
        )
        for rank in range(self._ranks):
            own = (0.7 if rank == self.slow else 0.35) * self._step_s * (1 + 0.02 * noise[2, rank])
            scalars = {
                "loss": 2.5 + 0.02 * noise[0, rank],
                "grad_norm": 0.34 * np.exp(0.05 * noise[1, rank]),
                "step_time_s": self._step_s * (1 + 0.01 * noise[2, rank]),
                "before_backward_s": own * 0.6,
                "own_backward_s": own * 0.4,
            }
            if rank == self.bad and step >= self.bad_from:
                scalars["loss"] = scalars["grad_norm"] = float("nan")
            yield self._encode(
                Frame(
                    step=step,
                    time=self._began + step * self._step_s,
                    stage="reduced",
                    scalars={name: float(value) for name, value in scalars.items()},
                    columns=[column],
                )
            )

    def go_bad(self, step: int) -> None:
        """From this step on one rank is NaN; it says so."""
        import rank_runs

        self.bad_from = step
        key = self._runs.key("events", rank=self.bad)
        event = rank_runs.nan_event(self.bad, step)
        self._store.append(key, self._store.position(key).next_seq, [self._encode(event)])
        self._store.commit()


def serve_and_feed(pipe: Any, folder: str, arguments: argparse.Namespace) -> None:
    """Serve; send the address; then step after step until told to stop; "bad" makes a rank go NaN."""
    from clickhouse_server import ClickHouseServer

    from dashboard.serving.server import Server

    environment = {"XDG_STATE_HOME": folder, "NANSCOPE_TOKEN": "token-for-bench"}
    with contextlib.ExitStack() as stack:
        if arguments.clickhouse:
            (place := Path(folder) / "clickhouse").mkdir()
            database = ClickHouseServer(place)
            database.start()
            stack.callback(database.stop)
            environment |= {
                "NANSCOPE_STORE": database.url("ranks"),
                "NANSCOPE_STORE_PASSWORD": database.password,
            }
        server = Server(
            port=0,
            ingest="tcp://127.0.0.1:0",
            data=Path(folder) / "data",
            spool=Path(folder) / "spool",
            environment=environment,
        )
        server.start()
        stack.callback(server.stop)
        step_s = 1 / arguments.rate
        began = time.time() - arguments.history * step_s
        feed = Feed(server.store, ranks=arguments.ranks, layers=arguments.layers, step_s=step_s, began=began)
        feed.steps(range(arguments.history))
        began += time.time() - (began + arguments.history * step_s)  # filling took its time
        pipe.send(server.address)
        step, late = arguments.history, 0.0
        while True:
            due = began + (step + 1) * step_s
            if pipe.poll(max(0.0, due - time.time())):
                if pipe.recv() == "stop":
                    break
                feed.go_bad(step)
                server.notify()
                continue
            feed.steps(range(step, step + 1))
            server.notify()
            step += 1
            late = max(late, time.time() - due)
        pipe.send((step - arguments.history, late))


class Watched:
    """What is measured of a page and its server, over some seconds."""

    def __init__(self, page: Page, server: psutil.Process, idle: float) -> None:
        self.page, self._server, self._idle = page, server, idle
        self._session = page.context.new_cdp_session(page)
        self._session.send("Performance.enable", {"timeDomain": "threadTicks"})
        page.evaluate(LONG_TASKS)

    def _task_s(self) -> float:
        found = self._session.send("Performance.getMetrics")["metrics"]
        return next(metric["value"] for metric in found if metric["name"] == "TaskDuration")

    def row(self, name: str, first_s: float, seconds: float) -> str:
        """A row of the table."""
        self.page.wait_for_timeout(3000)
        self.page.evaluate("window.longTasks.length = 0")
        sent, task, cpu = self.page.evaluate("nanscope.link.bytes"), self._task_s(), cpu_s(self._server)
        began = time.perf_counter()
        self.page.wait_for_timeout(seconds * 1000)
        took = time.perf_counter() - began
        kb = (self.page.evaluate("nanscope.link.bytes") - sent) / 1000
        main, server = self._task_s() - task, cpu_s(self._server) - cpu
        long, above = self.page.evaluate("window.longTasks"), server / took - self._idle
        return (
            f"| {name} | {first_s * 1e3:,.0f} | {kb / took:,.1f} | {100 * main / took:.1f} "
            f"| {len(long) / took:.2f}, {max(long, default=0):.0f} | {100 * above:.1f} "
            f"| {100 * self._idle:.0f} | {self._server.memory_info().rss / 2**20:,.0f} |"
        )


def cpu_s(process: psutil.Process) -> float:
    """Processor seconds until now."""
    return sum(process.cpu_times()[:2])


def wait(page: Page, script: str, limit_s: float = 60) -> None:
    """Playwright's own waiting needs eval, which the page's policy forbids."""
    deadline = time.perf_counter() + limit_s
    while not page.evaluate(script):
        assert time.perf_counter() < deadline, script
        page.wait_for_timeout(5)


def look(pipe: Any, address: str, server: psutil.Process, arguments: argparse.Namespace) -> None:
    """Open the page and print a row of each view."""
    cpu, began = cpu_s(server), time.perf_counter()
    time.sleep(arguments.seconds)
    idle = (cpu_s(server) - cpu) / (time.perf_counter() - began)
    flags = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--disable-background-networking"]
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=flags)
        page = browser.new_page(viewport={"width": 1440, "height": 900}, color_scheme=arguments.theme)
        opened = time.perf_counter()
        page.goto(address)
        wait(page, "Boolean(window.nanscope?.painted?.('loss'))")
        first = time.perf_counter() - opened
        watched = Watched(page, server, idle)
        print(watched.row("Overview", first, arguments.seconds), flush=True)
        opened = time.perf_counter()
        page.locator("#tab-ranks").click()
        wait(page, "nanscope.ranks.rows.length > 0")
        first = time.perf_counter() - opened
        print(watched.row("Ranks", first, arguments.seconds), flush=True)
        pipe.send("bad")
        wait(page, "nanscope.ranks.fields.remarks.some((each) => each.kind === 'bad')")
        print(watched.row("Ranks, one of them NaN", float("nan"), arguments.seconds), flush=True)
        if arguments.screenshots:
            pictures(page, arguments.screenshots)
        browser.close()


def pictures(page: Page, folder: Path) -> None:
    """The views at two widths, in both themes."""
    folder.mkdir(parents=True, exist_ok=True)
    for theme in ("dark", "light"):
        page.emulate_media(color_scheme=theme)
        for width, height in ((1440, 900), (1024, 768)):
            page.set_viewport_size({"width": width, "height": height})
            for tab in ("overview", "ranks"):
                page.evaluate("(tab) => nanscope.change({ tab })", tab)
                if tab == "ranks":
                    wait(page, "nanscope.ranks.fields !== null")
                page.wait_for_timeout(1500)
                page.screenshot(path=folder / f"{tab}-{theme}-{width}.png")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ranks", type=int, default=1024)
    parser.add_argument("--layers", type=int, default=50)
    parser.add_argument("--rate", type=float, default=1.0, help="steps a second of every rank")
    parser.add_argument("--history", type=int, default=100, help="steps before the page is opened")
    parser.add_argument("--seconds", type=float, default=15.0)
    parser.add_argument("--theme", default="dark")
    parser.add_argument("--clickhouse", action="store_true", help="in place of DuckDB")
    parser.add_argument("--screenshots", type=Path)
    arguments = parser.parse_args()
    pipe, child = multiprocessing.Pipe()
    with tempfile.TemporaryDirectory() as folder:
        process = multiprocessing.get_context("spawn").Process(
            target=serve_and_feed, args=(child, folder, arguments)
        )
        process.start()
        assert process.pid is not None
        address = pipe.recv()
        asked = f"{arguments.ranks} ranks of {arguments.layers} layers, {arguments.rate:g} steps/s"
        print(f"{asked}, load {os.getloadavg()[0]:.1f}")
        print("| view | first ms | kB/s | main % | long a second, longest ms | server % | fed % | rss MiB |")
        print("|---" * 8 + "|")
        look(pipe, address, psutil.Process(process.pid), arguments)
        pipe.send("stop")
        steps, late = pipe.recv()
        print(f"{steps} live steps, {late:.1f} s late at most")
        process.join(60)


if __name__ == "__main__":
    main()
