"""Odd input of all kinds: nothing but the documented exceptions, no hang, no memory that grows."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from api_server import RUN, call, fill, serving
from fuzz_cases import MSGPACK, odd_inputs
from fuzz_queries import QUERIES, ask_raw
from fuzz_targets import TARGETS, real_records

from dashboard.serving.server import Server
from probe.wire import RunStart, StreamKey, encode

SEED = int(os.environ.get("FUZZ_SEED", "15"))
FACTOR = int(os.environ.get("FUZZ_FACTOR", "30"))
"""How many times the cases of `make test` the long part has."""
MOST_GROWTH = 300 * 2**20
MOST_S = 20.0
"""Of one case: a hang, on the busiest machine."""


def run_cases(name: str, folder: Path, factor: int) -> None:
    target = TARGETS[name](folder)
    count = target.in_make_test * factor
    before, refused, began = psutil.Process().memory_info().rss, 0, time.monotonic()
    inputs = odd_inputs(target.seeds, seed=SEED, count=count, codec=target.codec)
    for number, data in enumerate(inputs):
        case_began = time.thread_time()
        try:
            target.take(data)
        except target.refusals:
            refused += 1
            assert number >= len(target.seeds), f"{name}: the real input {data[:300]!r} is refused"
        except BaseException as error:
            raise AssertionError(f"{name}, seed {SEED}, case {number}: {data[:300]!r}") from error
        assert time.thread_time() - case_began < MOST_S, f"{name}, seed {SEED}, case {number}: {data[:300]!r}"
    target.after()
    took, grown = time.monotonic() - began, psutil.Process().memory_info().rss - before
    grown_mib = grown / 2**20
    print(
        f"\n{name}: seed {SEED}, {count:,} cases in {took:.1f} s, {refused:,} refused, {grown_mib:+.0f} MiB"
    )
    assert grown < MOST_GROWTH


@pytest.mark.parametrize("name", TARGETS)
def test_fuzzing_bounded(tmp_path: Path, name: str) -> None:
    run_cases(name, tmp_path, 1)


@pytest.mark.faults
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", TARGETS)
def test_fuzzing_long(tmp_path: Path, name: str) -> None:
    run_cases(name, tmp_path, FACTOR)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(tmp_path_factory.mktemp("fuzzing")) as started:
        fill(started, is_full=True)
        started.store.commit()
        yield started


def ask_odd_queries(server: Server, count: int) -> None:
    seen: dict[int | None, int] = {}
    for number, target in enumerate(odd_inputs([q.encode() for q in QUERIES], seed=SEED, count=count)):
        status = ask_raw(server, target[:20_000].replace(b"\n", b"%0a"))
        assert status is None or status < 500, f"seed {SEED}, case {number}: {status} for {target[:300]!r}"
        seen[status] = seen.get(status, 0) + 1
    print(f"\nqueries: seed {SEED}, {count:,} cases, answers by status {seen}")
    assert call(server, "/health").status == 200


def test_fuzzing_queries_bounded(server: Server) -> None:
    ask_odd_queries(server, 250)


@pytest.mark.faults
@pytest.mark.timeout(1800)
def test_fuzzing_queries_long(server: Server) -> None:
    ask_odd_queries(server, 250 * FACTOR)


ROUTES = [
    "", "/ranks", "/layers", "/delivery", "/series", "/series/values?name=loss", "/statistics",
    "/heatmap", "/events",
    "/documents", "/documents/profile", "/summary", "/report", "/notes", "/tracks", "/histograms/subjects",
    "/export?format=json", "/export?format=csv", "/export?format=html",
]  # fmt: skip


def read_what_is_stored(server: Server, where: str) -> None:
    """Every answer about any run is one; one run's odd values take nothing from the others."""
    paths = [f"/api/v1/runs/{run}{route}" for run in ("run", RUN) for route in ROUTES]
    for path in ["/api/v1/runs", "/metrics", "/health", "/training-logs/debug/summary", *paths]:
        got = call(server, path)
        assert got.status < 500, f"{where}: {got.status} for {path}: {got.body[:300]!r}"
        assert got.status == 200 or RUN not in path, f"{where}: {path}: {got.body[:300]!r}"


def store_odd_records(server: Server, count: int) -> None:
    seeds = real_records()
    keys = [StreamKey(run="run", writer="0-1", stream=stream) for stream in ("events", "metrics", "host")]
    for number, data in enumerate(odd_inputs(seeds, seed=SEED, count=count, codec=MSGPACK)):
        for key in keys:
            expected = server.store.append(key, 2**61, [data])
            server.store.append(key, expected, [data])
        if number % 1500 == 1499:
            read_what_is_stored(server, f"seed {SEED}, up to case {number}")
    server.store.commit()
    read_what_is_stored(server, f"seed {SEED}, all cases")
    print(f"\nstored records: seed {SEED}, {count:,} cases")


def test_fuzzing_stored_records_bounded(tmp_path: Path) -> None:
    with serving(tmp_path) as server:
        fill(server, is_full=True)
        store_odd_records(server, 600)


@pytest.mark.faults
@pytest.mark.timeout(1800)
def test_fuzzing_stored_records_long(tmp_path: Path) -> None:
    with serving(tmp_path) as server:
        fill(server, is_full=True)
        store_odd_records(server, 450 * FACTOR)


@pytest.mark.parametrize("time_s", [float("inf"), float("-inf"), float("nan"), 1e308, -1e308])
def test_odd_start_time_of_a_run_takes_no_page_of_the_list(server: Server, time_s: float) -> None:
    name = f"odd-{abs(hash(str(time_s)))}"
    start = RunStart(run=name, rank=0, incarnation=1, time=time_s)
    server.store.append(StreamKey(run=name, writer="0-1", stream="events"), 0, [encode(start)])
    seen, cursor = set(), ""
    for _ in range(20):
        got = call(server, f"/api/v1/runs?limit=1{cursor}")
        assert got.status == 200, got.body
        seen |= {run["run"] for run in got.json()["runs"]}
        if (following := got.json()["next_cursor"]) is None:
            break
        cursor = f"&cursor={following}"
    assert {name, RUN} <= seen
    assert call(server, f"/api/v1/runs/{name}").status == 200
    server.store.commit()
    server.store.remove_run(name)
