"""What a picture of the view Ranks costs on each engine, in processor time: ours, and the database server's.

    python tests/benchmarks/bench_rank_pictures.py [--ranks 1024] [--layers 50] [--rounds 15]

A store of each engine gets the same records, a step of all ranks at a time. *live*: the picture of a
step that has come and is not committed yet, as most are that `serve` works out while the view is open.
*opened*: one of another width after the commit, as for a page that opens the view. There is no page and no
browser: with them, `bench_many_ranks.py`. Each number is the median of the rounds (lowest to highest).
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil

TESTS = Path(__file__).parents[1]
sys.path[:0] = [str(TESTS / "dashboard"), str(TESTS), str(TESTS.parent), str(Path(__file__).parent)]
WIDTH = 1024
"""Columns of the page that is open; one that opens has other ones."""
PICTURES = ("live", "opened")


class Engine:
    """A store, what is fed to it, and what it has cost."""

    def __init__(self, name: str, store: Any, server: psutil.Process | None, arguments: Any) -> None:
        from bench_many_ranks import Feed

        from dashboard.live.pictures import Pictures

        self.name, self.store, self._server = name, store, server
        self._pictures = Pictures(store)
        step_s = 1.0
        began = time.time() - arguments.history * step_s
        self.feed = Feed(store, ranks=arguments.ranks, layers=arguments.layers, step_s=step_s, began=began)
        self.feed.steps(range(arguments.history))
        self.costs: dict[str, list[tuple[float, ...]]] = {what: [] for what in PICTURES}

    def step(self, step: int) -> None:
        """A step of all ranks, and what pages ask for before its commit, and after it."""
        self.feed.steps(range(step, step + 1), is_committed=False)
        self._measure("live", columns=WIDTH)
        self.store.commit()
        self._measure("opened", columns=WIDTH + 64 * (step % 32 + 1))

    def _measure(self, what: str, *, columns: int) -> None:
        from dashboard.live.view import Subscription

        wish = Subscription(id=1, run=None, points=1024, columns=columns, ranks="grad_norm")
        before, began = self._spent(), time.perf_counter()
        picture = self._pictures.look(wish, with_data=True)
        took = time.perf_counter() - began
        spent = [after - was for after, was in zip(self._spent(), before, strict=True)]
        assert picture.fields is not None and picture.fields["ranks"] is not None
        self.costs[what].append((*spent, took))

    def _spent(self) -> tuple[float, float]:
        times = None if self._server is None else self._server.cpu_times()
        return time.process_time(), 0.0 if times is None else times.user + times.system


@contextlib.contextmanager
def engines(folder: Path, arguments: argparse.Namespace) -> Iterator[list[Engine]]:
    """Stores of both, with the history in them."""
    from clickhouse_server import ClickHouseServer

    from dashboard.store.clickhouse.store import ClickStore
    from dashboard.store.duck import DuckStore

    with contextlib.ExitStack() as stack:
        (place := folder / "clickhouse").mkdir()
        database = ClickHouseServer(place)
        database.start()
        stack.callback(database.stop)
        click = ClickStore(database.url("ranks"), password=database.password)
        stack.callback(click.close)
        duck = DuckStore(folder / "duckdb")
        stack.callback(duck.close)
        yield [
            Engine("DuckDB", duck, None, arguments),
            Engine("ClickHouse", click, psutil.Process(database.pid), arguments),
        ]


def row(engine: Engine, what: str) -> str:
    """A row of the table."""
    parts = []
    for column in zip(*engine.costs[what], strict=True):
        found = [1e3 * each for each in column]
        parts.append(f"{statistics.median(found):,.0f} ({min(found):,.0f} to {max(found):,.0f})")
    return f"| {engine.name} | {what} | {' | '.join(parts)} |"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ranks", type=int, default=1024)
    parser.add_argument("--layers", type=int, default=50)
    parser.add_argument("--history", type=int, default=100, help="steps before the first picture")
    parser.add_argument("--rounds", type=int, default=15)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, engines(Path(folder), arguments) as both:
        for step in range(arguments.history, arguments.history + arguments.rounds):
            for engine in both:
                engine.step(step)
        print(f"{arguments.ranks} ranks, {arguments.history} steps before, load {os.getloadavg()[0]:.1f}")
        print("| engine | picture | ours, CPU ms | server, CPU ms | took ms |")
        print("|---" * 5 + "|")
        for what in PICTURES:
            for engine in both:
                print(row(engine, what))


if __name__ == "__main__":
    main()
