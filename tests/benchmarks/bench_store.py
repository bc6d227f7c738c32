"""Prints ingest rates (values/s, three readers running) and read latencies of `DuckStore`.

    python tests/benchmarks/bench_store.py [--seconds 10] [--points 2e7] [--layers 500]

A value is one statistic of one parameter at one step. `--points 1e8` fills 500 layers x 200,000 steps
(with two parameters each: 2e8 parameter values), which takes about two minutes.

Measured with `--points 1e8` on two cores that other work shared (load 7 to 10), 6 statistics, 7 scalars:

    ingest at 1 M values/s   2,000 parameters: commit p50 49 ms, max  85 ms; read p50 30 ms, max 63 ms
                                70 parameters: commit p50 84 ms, max 120 ms; read p50 19 ms, max 44 ms
    ingest without a limit   2,000 parameters: 11.9 M values/s; 70 parameters: 4.3 M values/s
    heatmap of all 200,000 steps, 1000 columns      28 ms   newest 500 steps      14 ms
    heatmap, newest 8,000 steps (from raw rows)    106 ms   (45 ms on idle cores)
    7 scalars, 1000 points: all steps 25 ms, newest 1,000 steps 12 ms; opening 29 ms; about 6 bytes/value
    resident memory 217 MiB at the end

Blobs of one step and statistic were chosen over one row per value: 24,000 blobs of 70 values are inserted in
31 ms and 20,000 of 500 in 230 ms (43 M values/s).
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import psutil

from dashboard.store.duck import DuckStore
from dashboard.store.protocol import StepRange
from probe.wire import Column, Frame, LayerInfo, Layout, ParameterInfo, RunStart, StreamKey, encode

STATISTICS = ("grad_norm", "grad_max_abs", "grad_mean", "grad_std")
SCALARS = ("loss", "loss_raw", "grad_norm", "step_time_s", "samples", "probe_fraction", "process_rss_bytes")
BATCH_BYTES = 256 * 1024


def make_layout(parameters: int) -> Layout:
    layers = [LayerInfo(name=f"blocks.{index}", type="Linear") for index in range(parameters // 2)]
    names = [
        ParameterInfo(name=f"blocks.{index // 2}.{index % 2}", shape=[64], dtype="float32", layer=index // 2)
        for index in range(len(layers) * 2)
    ]
    return Layout(layout=0, model="net", layers=layers, parameters=names)


def make_frames(parameters: int, names: tuple[str, ...]) -> Callable[[int], bytes]:
    """Return step -> encoded frame. Values are slices of one pool of random numbers; no frames are alike."""
    pool = np.random.default_rng(0).lognormal(size=parameters + 1_000_003).astype(np.float32)
    scalars = np.random.default_rng(1).random((1000, len(SCALARS))).tolist()

    def frame(step: int) -> bytes:
        offsets = [(step * len(names) + index) * 127 % 1_000_003 for index in range(len(names))]
        columns = [
            Column(name=name, dtype="f4", data=pool[offset : offset + parameters].tobytes())
            for name, offset in zip(names, offsets, strict=True)
        ]
        named = dict(zip(SCALARS, scalars[step % 1000], strict=True))
        return encode(Frame(step=step, time=float(step), scalars=named, columns=columns))

    return frame


def start_run(store: DuckStore, run: str, parameters: int) -> StreamKey:
    start = RunStart(run=run, rank=0, incarnation=1, time=time.time())
    events = StreamKey(run=run, writer="0-1", stream="events")
    store.append(events, 0, [encode(start), encode(make_layout(parameters))])
    store.commit()
    return StreamKey(run=run, writer="0-1", stream="metrics")


def read_forever(store: DuckStore, run: str, stop: threading.Event, latencies: list[float]) -> None:
    """What an open page asks for, five times a second."""
    while not stop.wait(0.2):
        started = time.perf_counter()
        store.heatmap(run, 0, "grad_norm", max_columns=500)
        store.scalars(run, 0, ["loss", "grad_norm", "process_rss_bytes"], max_points=1000)
        latencies.append(time.perf_counter() - started)


def measure_ingest(folder: Path, parameters: int, seconds: float, *, rate: float = float("inf")) -> str:
    """Append as fast as possible, or `rate` values/s, and commit twice a second, with three readers."""
    store = DuckStore(folder)
    run = f"ingest-{parameters}"
    key = start_run(store, run, parameters)
    names = (*STATISTICS, "grad_nan_count", "grad_inf_count")
    frame = make_frames(parameters, names)
    batch = max(1, BATCH_BYTES // len(frame(0)))
    prepared = [
        [frame(step) for step in range(start, start + batch)]
        for start in range(0, 600_000_000 // len(frame(0)), batch)
    ]
    stop, latencies, commits = threading.Event(), [], []
    readers = [threading.Thread(target=read_forever, args=(store, run, stop, latencies)) for _ in range(3)]
    for reader in readers:
        reader.start()
    started = last_commit = time.perf_counter()
    sequence, number = 0, 0
    while number < len(prepared) and time.perf_counter() - started < seconds:
        due = started + sequence * parameters * len(names) / rate
        time.sleep(max(0.0, min(due, last_commit + 0.51) - time.perf_counter()))
        taken = store.append(key, sequence, prepared[number]) if time.perf_counter() >= due else sequence
        if (taken == sequence and time.perf_counter() >= due) or time.perf_counter() - last_commit > 0.5:
            last_commit = time.perf_counter()
            store.commit()
            commits.append(time.perf_counter() - last_commit)
        number += taken > sequence
        sequence = taken
    store.commit()
    spent = time.perf_counter() - started
    stop.set()
    for reader in readers:
        reader.join()
    store.close()
    count = sequence * parameters * len(names)
    size = (folder / "nanscope.duckdb").stat().st_size
    limit = "1 M/s" if rate < 1e9 else "no limit"
    return (
        f"ingest, {parameters} parameters, {limit}: {count / spent / 1e6:.2f} M values/s "
        f"({sequence / spent:7.0f} frames/s), commit p50 {1e3 * statistics.median(commits):4.0f} ms max "
        f"{1e3 * max(commits):4.0f} ms, read p50 {1e3 * statistics.median(latencies):4.0f} ms max "
        f"{1e3 * max(latencies):4.0f} ms, {size / count:.1f} bytes/value"
    )


def fill(store: DuckStore, layers: int, steps: int) -> StreamKey:
    key = start_run(store, "read", layers * 2)
    frame = make_frames(layers * 2, ("grad_norm",))
    sequence = 0
    while sequence < steps:
        sequence = store.append(
            key, sequence, [frame(step) for step in range(sequence, min(steps, sequence + 500))]
        )
        store.commit()
    return key


def best_and_worst(action: Callable[[], object], repeats: int = 7) -> str:
    spent = []
    for _ in range(repeats):
        started = time.perf_counter()
        action()
        spent.append(1e3 * (time.perf_counter() - started))
    return f"first {spent[0]:6.1f} ms, p50 {statistics.median(spent):6.1f} ms, max {max(spent):6.1f} ms"


def measure_reads(folder: Path, layers: int, points: int) -> None:
    steps = points // layers
    store = DuckStore(folder)
    started = time.perf_counter()
    fill(store, layers, steps)
    print(f"filled {layers} layers x {steps} steps in {time.perf_counter() - started:.1f} s")
    store.close()
    started = time.perf_counter()
    store = DuckStore(folder)
    print(f"opened in {1e3 * (time.perf_counter() - started):.0f} ms")
    tail = StepRange(first=steps - 8000)
    middle = StepRange(first=steps // 3, end=steps // 3 + 100_000)
    views = {
        "heatmap, all steps, 1000 columns": lambda: store.heatmap("read", 0),
        "heatmap, newest 8,000 steps": lambda: store.heatmap("read", 0, steps=tail),
        "heatmap, newest 500 steps": lambda: store.heatmap("read", 0, steps=StepRange(first=steps - 500)),
        "heatmap, 100,000 steps in the middle": lambda: store.heatmap("read", 0, steps=middle),
        "heatmap, newest 8,000 steps, one layer unfolded": lambda: store.heatmap(
            "read", 0, steps=tail, unfolded=("blocks.3",)
        ),
        "7 scalars, all steps, 1000 points": lambda: store.scalars("read", 0, list(SCALARS)),
        "7 scalars, newest 1,000 steps": lambda: store.scalars(
            "read", 0, list(SCALARS), StepRange(first=steps - 1000)
        ),
        "7 scalars, newest 8,000 steps": lambda: store.scalars("read", 0, list(SCALARS), tail),
        "runs": store.runs,
        "events": lambda: store.events("read"),
    }
    for name, action in views.items():
        print(f"  {name:50s} {best_and_worst(action)}")
    store.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seconds", type=float, default=8.0, help="of each ingest measurement")
    parser.add_argument("--points", type=float, default=2e7, help="layer values to fill for the read figures")
    parser.add_argument("--layers", type=int, default=500)
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="bench-store-"))
    try:
        for parameters in (2000, 70):
            for rate in (1e6, float("inf")):
                place = folder / f"{parameters}-{rate}"
                print(measure_ingest(place, parameters, options.seconds, rate=rate), flush=True)
        measure_reads(folder / "read", options.layers, int(options.points))
        resident = psutil.Process(os.getpid()).memory_info().rss
        print(f"resident memory at the end: {resident / 2**20:.0f} MiB")
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
