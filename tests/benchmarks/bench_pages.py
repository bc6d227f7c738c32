"""Prints what open pages cost the server: its CPU with 0, 1 and 10 of them on one run, memory, ingest.

    python tests/benchmarks/bench_pages.py [--pages 0 1 10] [--layers 100] [--history 2000] [--seconds 20]

One process serves; a thread of it plays the collector and appends steps that were encoded before: 10 a
second, with a commit each half second. Another process holds the pages: WebSocket clients that acknowledge
each message. CPU is that of the serving process alone, in hundredths of one core; what pages cost is the
difference to none. `append` and `commit` are the slowest ones.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import psutil
from websockets.asyncio.client import connect

TESTS = Path(__file__).parents[1]
sys.path[:0] = [str(TESTS / "dashboard"), str(TESTS.parent)]
STEPS_PER_S = 10
COMMIT_S = 0.5
TOKEN = "token-for-bench"
SETTLE_S = 3.0


class Feeder(threading.Thread):
    """Plays the collector: appends one step each tenth of a second and commits twice a second."""

    def __init__(self, server: Any, records: list[bytes]) -> None:
        super().__init__(daemon=True)
        self._server, self._records = server, records
        self._slowest_s = {"append": 0.0, "commit": 0.0}
        self.stopping = threading.Event()

    def run(self) -> None:
        import page_runs

        store, stream = self._server.store, page_runs.key("metrics")
        began = committed = time.monotonic()
        for number, record in enumerate(self._records):
            if self.stopping.wait(max(0.0, began + number / STEPS_PER_S - time.monotonic())):
                return
            at = time.monotonic()
            store.append(stream, store_next(store, stream, number), [record])
            self._note("append", at)
            self._server.notify()
            if time.monotonic() - committed >= COMMIT_S:
                at = committed = time.monotonic()
                store.commit()
                self._note("commit", at)

    def _note(self, what: str, began: float) -> None:
        self._slowest_s[what] = max(self._slowest_s[what], time.monotonic() - began)

    def take_slowest_s(self) -> dict[str, float]:
        """Return the slowest of each since the last call."""
        slowest, self._slowest_s = self._slowest_s, {"append": 0.0, "commit": 0.0}
        return slowest


_first_seq: dict[str, int] = {}


def store_next(store: Any, stream: Any, number: int) -> int:
    """Return the sequence number of the feeder's record; what is durable lags behind what is queued."""
    return _first_seq.setdefault("metrics", store.position(stream).next_seq) + number


def serve_and_feed(pipe: Any, folder: str, *, layers: int, history: int, steps: int) -> None:
    """Serve a run with a history, feed it, and answer questions about this process."""
    import page_runs

    from dashboard.serving.server import Server
    from probe.wire import encode

    environment = {"XDG_STATE_HOME": folder, "NANSCOPE_TOKEN": TOKEN}
    places = {"data": Path(folder) / "data", "spool": Path(folder) / "spool"}
    server = Server(port=0, ingest="tcp://127.0.0.1:0", environment=environment, **places)
    server.start()
    blocks = max(1, round((layers - 3) / 6))
    begin, description = time.time() - history / STEPS_PER_S, page_runs.layout(blocks)
    for first in range(0, history, 2000):
        chunk = range(first, min(history, first + 2000))
        page_runs.fill(server.store, steps=chunk, blocks=blocks, start_time=begin)
    for at, severity in ((7, "critical"), (8, "warning"), (3, "info")):
        page_runs.add_event(server.store, page_runs.event(history * at // 10, severity=severity))
    records = [
        encode(page_runs.frame(step, description, time=begin + step / STEPS_PER_S))
        for step in range(history, history + steps)
    ]
    feeder = Feeder(server, records)
    feeder.start()
    pipe.send(server.page)
    process = psutil.Process()
    while pipe.recv() == "ask":
        rss_mib = process.memory_info().rss / 2**20
        pipe.send((time.process_time(), time.monotonic(), rss_mib, feeder.take_slowest_s()))
    feeder.stopping.set()
    feeder.join()
    server.stop()


def hold_pages(pipe: Any, page: str, *, pages: int, widths: Sequence[int]) -> None:
    """Open pages until the parent says so; then send messages, bytes, seconds to each first picture."""
    pipe.send(asyncio.run(_hold_pages(pipe, page, pages, widths)))


async def _hold_pages(
    pipe: Any, page: str, pages: int, widths: Sequence[int]
) -> tuple[int, int, list[float]]:
    totals = [0, 0]
    opened: list[float] = []
    tasks = [
        asyncio.create_task(_look(page, widths[number % len(widths)], totals, opened))
        for number in range(pages)
    ]
    while not await asyncio.to_thread(pipe.poll, 0.2):
        for task in tasks:
            if task.done():
                task.result()
    for task in tasks:
        task.cancel()
    return totals[0], totals[1], opened


async def _look(page: str, width: int, totals: list[int], opened: list[float]) -> None:
    address = page.replace("http:", "ws:") + "live"
    headers = {"x-nanscope-token": TOKEN}
    began = time.monotonic()
    async with connect(address, additional_headers=headers, origin=page.rstrip("/"), max_size=None) as socket:  # type: ignore[arg-type]
        await socket.send(
            msgspec.json.encode({"m": "subscribe", "id": 1, "points": width, "columns": width}).decode()
        )
        is_first = True
        async for message in socket:
            totals[0] += 1
            totals[1] += len(message)
            if is_first and b'"charts"' in message:
                opened.append(time.monotonic() - began)
                is_first = False
            await socket.send('{"m":"ack"}')


def measure(pipe: Any, page: str, arguments: argparse.Namespace, *, pages: int) -> tuple[float, str]:
    """Return the server's CPU, in hundredths of a core, and the line of the table."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    holder = context.Process(
        target=hold_pages, args=(theirs, page), kwargs={"pages": pages, "widths": arguments.widths}
    )
    holder.start()
    theirs.close()  # so that its end is noticed
    time.sleep(SETTLE_S + 1.0)
    pipe.send("ask")
    before = pipe.recv()
    time.sleep(arguments.seconds)
    pipe.send("ask")
    after = pipe.recv()
    ours.send("stop")
    messages, size, opened = ours.recv()
    holder.join(20)
    cpu = 100 * (after[0] - before[0]) / (after[1] - before[1])
    slowest = {name: 1e3 * max(before[3][name], after[3][name]) for name in after[3]}
    first = f"{max(opened):6.2f}" if opened else "     -"
    line = (
        f"{cpu:7.1f} {after[2]:9.0f} {slowest['append']:10.1f} {slowest['commit']:10.1f} {first} "
        f"{messages / max(1, pages) / (arguments.seconds + SETTLE_S):9.1f} {size / 1e3:9.0f}"
    )
    return cpu, line


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pages", type=int, nargs="+", default=[0, 1, 10])
    parser.add_argument("--widths", type=int, nargs="+", default=[900], help="pixels of the pages, in turn")
    parser.add_argument("--layers", type=int, default=100)
    parser.add_argument("--history", type=int, default=2000, help="steps before the pages open")
    parser.add_argument("--seconds", type=float, default=20.0)
    arguments = parser.parse_args()
    context = multiprocessing.get_context("spawn")
    pipe, child = context.Pipe()
    needed = STEPS_PER_S * (len(arguments.pages) * (arguments.seconds + SETTLE_S + 15.0) + 60.0)
    shape = {"layers": arguments.layers, "history": arguments.history, "steps": round(needed)}
    with tempfile.TemporaryDirectory() as folder:
        process = context.Process(target=serve_and_feed, args=(child, folder), kwargs=shape)
        process.start()
        child.close()
        page = pipe.recv()
        time.sleep(SETTLE_S)
        print("pages   CPU %   RSS MiB  append ms  commit ms  open s  msg/s one     kB all  above first %")
        base: float | None = None
        for pages in arguments.pages:
            cpu, line = measure(pipe, page, arguments, pages=pages)
            base = cpu if base is None else base
            print(f"{pages:5} {line} {cpu - base:14.1f}", flush=True)
        pipe.send("stop")
        process.join(20)


if __name__ == "__main__":
    main()
