"""Prints what a record costs the training thread, and how fast a helper brings a spool into the store.

Run: `python tests/benchmarks/bench_delivery.py [frames] [parameters]`. Real journal, helper, ZeroMQ, DuckDB.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "integration"))

from delivery_processes import RUN, Site, wait_until

from dashboard.store.duck import DuckStore
from probe.delivery.helper.helper import start_helper
from probe.delivery.journal.journal import JournalWriter
from probe.delivery.journal.journal_reader import StreamFollower
from probe.delivery.recorder.recorder import Recorder
from probe.wire import Event, Frame, LayerInfo, Layout, ParameterInfo, RunEnd, RunStart, encode
from probe.wire.columns import pack_column

COLUMNS = ("grad_norm", "grad_max_abs", "grad_mean", "grad_std", "parameter_norm")


def make_frame(step: int, parameters: int) -> Frame:
    values = np.linspace(0.1, 1.0, parameters) * (1 + step % 7)
    columns = [pack_column(name, values) for name in COLUMNS]
    return Frame(step=step, time=time.time(), columns=columns, scalars={"loss": 1.0 / (1 + step)})


def make_layout(parameters: int) -> Layout:
    return Layout(
        layout=0,
        model="net",
        parameters=[
            ParameterInfo(name=f"{i}.weight", shape=[8, 8], dtype="float32", layer=i)
            for i in range(parameters)
        ],
        layers=[LayerInfo(name=str(i), type="Linear") for i in range(parameters)],
    )


def bench_training_thread(spool: Path, parameters: int) -> None:
    start = RunStart(run="bench", rank=0, incarnation=1, pid=os.getpid(), time=time.time())
    began = time.perf_counter()
    recorder = Recorder(spool, start, connect="")
    print(f"attach (no helper)          {(time.perf_counter() - began) * 1e3:8.2f} ms")
    frames = [make_frame(step, parameters) for step in range(1000)]
    began = time.perf_counter()
    for frame in frames:
        recorder.frame(frame)
    print(f"Recorder.frame              {(time.perf_counter() - began) / len(frames) * 1e6:8.2f} us")
    event = Event(
        id="0" * 16, run="bench", rank=0, incarnation=1, step=1, time=1.0, kind="custom", severity="info",
        message="m" * 100,
    )  # fmt: skip
    began = time.perf_counter()
    for _ in range(5000):
        recorder.event(event)
    print(f"Recorder.event              {(time.perf_counter() - began) / 5000 * 1e6:8.2f} us")
    recorder.close(outcome="finished", last_step=1)


def write_run(spool: Path, frames: int, parameters: int) -> int:
    """Write a finished run; return the bytes of its frames."""
    journal = JournalWriter(spool / RUN / "0-1", run=RUN, writer="0-1")
    journal.append("events", encode(RunStart(run=RUN, rank=0, incarnation=1, pid=1, time=1.0)))
    journal.append("events", encode(make_layout(parameters)))
    total = 0
    for step in range(frames):
        data = encode(make_frame(step, parameters))
        journal.append("metrics", data)
        total += len(data)
    journal.append("events", encode(RunEnd(time=time.time(), step=frames, outcome="finished")))
    journal.close()
    return total


def bench_shipping(root: Path, frames: int, parameters: int) -> None:
    site = Site(root)
    os.environ["XDG_STATE_HOME"] = site.environment["XDG_STATE_HOME"]
    size = write_run(site.spool, frames, parameters)
    follower = StreamFollower(site.spool / RUN / "0-1", "metrics")
    began = time.perf_counter()
    while follower.poll() is not None:
        pass
    print(f"read back                   {size / (time.perf_counter() - began) / 1e6:8.0f} MB/s")
    dashboard = site.start_dashboard()
    wait_until((root / "state" / "nanscope" / "serve.json").exists, "no dashboard")
    start_helper(site.spool / RUN, None)
    wait_until(lambda: site.helper_pid() is not None, "no helper")
    began = time.perf_counter()
    site.wait_for_helper_to_leave(600)
    took = time.perf_counter() - began
    site.stop(dashboard)
    site.close()
    store = DuckStore(site.data)
    stored = sum(position.stored for position in store.positions(RUN) if position.key.stream == "metrics")
    store.close()
    values = frames * parameters * len(COLUMNS)
    print(f"helper -> store             {stored / took:8.0f} frames/s ({stored} of {frames})")
    print(f"                            {values / took / 1e6:8.2f} M values/s, {size / took / 1e6:.0f} MB/s")


def main() -> None:
    frames = int(sys.argv[1]) if len(sys.argv) > 1 else 3000
    parameters = int(sys.argv[2]) if len(sys.argv) > 2 else 500
    print(f"{frames} frames of {parameters} parameters x {len(COLUMNS)} statistics")
    with tempfile.TemporaryDirectory() as folder:
        bench_training_thread(Path(folder) / "a", parameters)
        bench_shipping(Path(folder), frames, parameters)


if __name__ == "__main__":
    main()
