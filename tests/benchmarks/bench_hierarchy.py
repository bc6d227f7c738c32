"""Prints what a rank costs on the network, in the helper, the dashboard and the store: in full, and pooled.

    python tests/benchmarks/bench_hierarchy.py [--ranks 18] [--layers 1000] [--steps 400] [--rate 10]

Journals of frames as level `basic` writes them (weight and bias of each layer, four statistics, norms of
the parameters at each tenth step), one real helper, a TCP forwarder that counts, a real `dashboard serve`.
*in full*: `NANSCOPE_POOL_ABOVE` above the ranks. *pooled*: as it is by itself, where nobody looks; the first
rank is sent in full, and taken off: the row is that of each of the others. *B/rank s*: bytes to the dashboard
for each rank and second, at so many steps a second. *helper*, *serve*: processor milliseconds for each of a
rank's steps. *disk*: bytes of the store for each, once it is closed.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import socket
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import psutil

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "integration"))

from forked_scripts import ForkedScripts
from trial import Trial, wait_for

from probe.delivery.helper.helper import start_helper
from probe.delivery.journal.journal import JournalWriter
from probe.delivery.journal.run_json import write_run_json
from probe.wire import Frame, LayerInfo, Layout, ParameterInfo, RunEnd, RunStart, encode
from probe.wire.columns import pack_column

RUN = "wide"
STATISTICS = ("grad_norm", "grad_max_abs", "grad_mean", "grad_std")


class Counter(threading.Thread):
    """Passes TCP connections on and counts the bytes that go to the dashboard."""

    def __init__(self, target: int) -> None:
        super().__init__(daemon=True)
        self._target = target
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.sent = 0

    def run(self) -> None:
        """Take connections until the process ends."""
        while True:
            helper, _ = self._listener.accept()
            dashboard = socket.create_connection(("127.0.0.1", self._target))
            for source, sink, counts in ((helper, dashboard, True), (dashboard, helper, False)):
                threading.Thread(target=self._pass, args=(source, sink, counts), daemon=True).start()

    def _pass(self, source: socket.socket, sink: socket.socket, counts: bool) -> None:
        # Either end may go first.
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 18):
                sink.sendall(data)
                self.sent += len(data) if counts else 0
        sink.close()


@dataclass(frozen=True, kw_only=True)
class Cost:
    """Of all ranks."""

    sent: int
    helper_s: float
    serve_s: float
    disk: int


def write(spool: Path, arguments: argparse.Namespace) -> None:
    """Write the journals of all ranks to their end."""
    generator = np.random.default_rng(0)
    layers = [LayerInfo(name=f"blocks.{index}", type="Linear") for index in range(arguments.layers)]
    parameters = [
        ParameterInfo(name=f"{layer.name}.{name}", shape=[8, 8], dtype="float32", layer=index)
        for index, layer in enumerate(layers)
        for name in ("weight", "bias")
    ]
    layout = encode(Layout(layout=0, model="net", parameters=parameters, layers=layers))
    now = time.time_ns()
    columns = {
        name: np.exp(np.cumsum(generator.normal(scale=0.05, size=(arguments.steps, len(parameters))), axis=0))
        for name in (*STATISTICS, "parameter_norm")
    }
    scalars = {f"scalar_{number}": 1.0 + number for number in range(10)}
    frames = []
    for step in range(arguments.steps):
        names = (*STATISTICS, "parameter_norm") if step % 10 == 0 else STATISTICS
        packed = [pack_column(name, columns[name][step]) for name in names]
        frame = Frame(step=step, time=time.time(), stage="shard", scalars=scalars, columns=packed)
        frames.append(encode(frame))
    for rank in range(arguments.ranks):
        start = RunStart(run=RUN, rank=rank, incarnation=now, world_size=arguments.ranks, pid=os.getpid())
        writer = f"{rank}-{now}"
        journal = JournalWriter(spool / RUN / writer, run=RUN, writer=writer)
        write_run_json(spool / RUN, start)
        journal.append_many("events", [encode(start), layout])
        journal.append_many("metrics", frames)
        ended = RunEnd(time=time.time(), step=arguments.steps - 1, outcome="finished")
        journal.append("events", encode(ended))
        journal.close()


def measure(root: Path, serves: ForkedScripts, arguments: argparse.Namespace, pool_above: int) -> Cost:
    """Ship all journals and wait until they are stored."""
    trial = Trial(root, 0, serves, serves)
    os.environ["XDG_STATE_HOME"] = trial.environment["XDG_STATE_HOME"]
    os.environ["NANSCOPE_POOL_ABOVE"] = trial.environment["NANSCOPE_POOL_ABOVE"] = str(pool_above)
    trial.start_server()
    assert trial.server is not None
    serve = psutil.Process(trial.server.pid)
    counter = Counter(trial.ingest_port)
    counter.start()
    write(trial.spool, arguments)
    before = sum(serve.cpu_times()[:2])
    start_helper(trial.spool / RUN, f"tcp://127.0.0.1:{counter.port}")
    wait_for(lambda: trial.helper_pid(RUN) is not None, "no helper comes")
    helper = psutil.Process(trial.helper_pid(RUN))
    helper_s = 0.0
    while helper.is_running() and helper.status() != psutil.STATUS_ZOMBIE:
        try:
            helper_s = sum(helper.cpu_times()[:2])
        except psutil.Error:
            break
        time.sleep(0.02)
    trial.settle(600)
    serve_s = sum(serve.cpu_times()[:2]) - before
    trial.stop_server()
    disk = sum(path.stat().st_size for path in trial.data.rglob("*") if path.is_file())
    trial.close()
    return Cost(sent=counter.sent, helper_s=helper_s, serve_s=serve_s, disk=disk)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ranks", type=int, default=18)
    parser.add_argument("--layers", type=int, default=1000)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--rate", type=float, default=10.0)
    arguments = parser.parse_args()
    print(f"Load average at the beginning: {os.getloadavg()[0]:.1f}. {arguments.layers} layers, "
          f"{arguments.ranks} ranks, {arguments.steps} steps, {arguments.rate:g} steps/s.\n")  # fmt: skip
    print("| a rank | B a step | B/rank s | helper ms | serve ms | disk B |\n|---|---|---|---|---|---|")
    with ForkedScripts("dashboard.serving.server", "dashboard.ingest.spool") as serves:
        costs = []
        for pool_above in (10**6, 0):
            with tempfile.TemporaryDirectory() as name:
                costs.append(measure(Path(name), serves, arguments, pool_above))
    full, pooled = costs
    count = arguments.ranks * arguments.steps
    others = (arguments.ranks - 1) * arguments.steps

    def of_others(all_of_them: float, of_full: float) -> float:
        return (all_of_them - of_full / arguments.ranks) / others

    for name, values in (
        ("in full", (full.sent / count, full.helper_s / count, full.serve_s / count, full.disk / count)),
        (
            "pooled",
            tuple(of_others(getattr(pooled, each), getattr(full, each)) for each in Cost.__annotations__),
        ),
    ):
        sent, helper_s, serve_s, disk = values
        print(
            f"| {name} | {sent:,.0f} | {sent * arguments.rate:,.0f} | {helper_s * 1e3:.2f} "
            f"| {serve_s * 1e3:.2f} | {disk:,.0f} |"
        )


if __name__ == "__main__":
    main()
