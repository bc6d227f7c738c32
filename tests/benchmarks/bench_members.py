"""Prints what it costs to make a further model of a run: a member, as trials, clients and inner copies are.

    python tests/benchmarks/bench_members.py [--repeats 5] [--only copies clients trials inner]

Each program runs unmodified through `dashboard run` and without it in turn, each time in a process of its
own; what is printed are medians over the repeats. Per member, in ms of CPU time:

- *making*: on the training thread, within the calls of ours that look at a new optimizer and that begin the
  session of its model, from their first line to their return; the end of the model before is part of it. The
  median over the members, and the 90th percentile; the first model, which begins the run, is left out;
- *beside*: of all other threads of the process, while those calls ran;
- *going*: on the training thread, when a model is gone that was followed;
- *recorder*, *helper*: of the recorder's thread and of the helper's process, over the whole program;
- *program*: CPU time of the process with `dashboard run` less that without it, over the number of models:
  the making, the first steps of each model, and the beginning of the run.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from bench_start import RECORDER_THREAD, helper_pid, process_cpu_s, thread_cpu_s

ROOT: Final = Path(__file__).resolve().parents[2]
MODELS: Final = {"copies": 40, "clients": 32, "trials": 50, "inner": 600}
"""How many each program makes."""


# -- in a process of its own


def make_net(width: int = 32) -> Any:
    """An MLP of three layers."""
    from torch import nn

    return nn.Sequential(
        nn.Linear(16, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 1)
    )


def train(model: Any, optimizer: Any, steps: int) -> float:
    """Some steps on random numbers; returns the last loss."""
    import torch

    loss = torch.zeros(())
    for _ in range(steps):
        optimizer.zero_grad()
        loss = (model(torch.randn(32, 16)) - 1).square().mean()
        loss.backward()
        optimizer.step()
    return float(loss.detach())


def copies(count: int) -> None:
    """Copies of one model, as MAML's inner loop makes them: three steps each."""
    import torch

    net = make_net()
    for _ in range(count):
        fast = copy.deepcopy(net)
        train(fast, torch.optim.SGD(fast.parameters(), lr=0.01), 3)


def clients(count: int) -> None:
    """Rounds of eight federated clients, whose weights are averaged."""
    import torch

    server = make_net()
    for _ in range(count // 8):
        local = [copy.deepcopy(server) for _ in range(8)]
        for client in local:
            train(client, torch.optim.SGD(client.parameters(), lr=0.01), 5)
        with torch.no_grad():
            for mean, *own in zip(server.parameters(), *(one.parameters() for one in local), strict=True):
                mean.copy_(torch.stack(own).mean(0))


def trials(count: int) -> None:
    """Trials of other widths and rates, of which every third is pruned by an exception."""
    import torch

    def objective(number: int) -> float:
        model = make_net(width=8 + 8 * (number % 5))
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-3 * (1 + number % 3))
        train(model, optimizer, 10)
        if number % 3 == 2:
            raise StopIteration("pruned")
        return train(model, optimizer, 10)

    for number in range(count):
        try:
            objective(number)
        except StopIteration:
            continue


PROGRAMS: Final[dict[str, Callable[[int], None]]] = {
    "copies": copies,
    "clients": clients,
    "trials": trials,
    "inner": copies,
}


class Meter:
    """Takes the times of the calls of ours in which models are found and begun."""

    def __init__(self) -> None:
        self.members: list[list[float]] = [[0.0, 0.0]]
        """Of each: CPU seconds of the training thread, and of the others meanwhile."""
        self.going: list[float] = []

    def attach(self) -> None:
        """Replace those methods by ones that are timed."""
        from probe.calls.launch.attacher import Attacher
        from probe.session import Probe

        guarded, attached, let_go = Attacher._guarded, Probe.attached, Probe._let_go

        def timed(attacher: Any, *arguments: Any) -> Any:
            process, thread = time.process_time(), time.thread_time()
            count = len(self.members)
            try:
                return guarded(attacher, *arguments)
            finally:
                own = time.thread_time() - thread
                made = self.members[count - 1]
                made[0] += own
                made[1] += max(0.0, time.process_time() - process - own)

        def counted(*arguments: Any, **options: Any) -> Any:
            try:
                return attached(*arguments, **options)
            finally:
                # What comes after it is of the next one.
                self.members.append([0.0, 0.0])

        def gone(probe: Any) -> None:
            thread = time.thread_time()
            let_go(probe)
            self.going.append(time.thread_time() - thread)

        for owner, name, value in (
            (Attacher, "_guarded", timed),
            (Probe, "attached", staticmethod(counted)),
            (Probe, "_let_go", gone),
        ):
            setattr(owner, name, value)

    def result(self) -> dict[str, Any]:
        """What was measured, in ms."""
        made = self.members[1:-1]
        return {
            "making": [own * 1e3 for own, _ in made],
            "beside": [other * 1e3 for _, other in made],
            "going": [own * 1e3 for own in self.going],
        }


def run_program(name: str, count: int, file: Path, *, is_recorded: bool) -> None:
    """Train, and write what it cost."""
    import torch

    torch.set_num_threads(1)
    torch.manual_seed(0)
    # What the first optimizer of a process imports belongs to no model.
    train(make_net(), torch.optim.Adam(make_net().parameters()), 1)
    meter = Meter()
    if is_recorded:
        meter.attach()
    used = resource.getrusage(resource.RUSAGE_SELF)
    PROGRAMS[name](count)
    after = resource.getrusage(resource.RUSAGE_SELF)
    result: dict[str, Any] = {
        "cpu": (after.ru_utime + after.ru_stime - used.ru_utime - used.ru_stime) * 1e3,
        **meter.result(),
    }
    if is_recorded:
        result["recorder"] = (thread_cpu_s(RECORDER_THREAD) or 0.0) * 1e3
        result["helper"] = process_cpu_s(helper_pid(Path(os.environ["NANSCOPE_SPOOL"]))) * 1e3
    file.write_text(json.dumps(result))


# -- outside


def measure(name: str, count: int, *, is_recorded: bool) -> dict[str, Any]:
    """Run a program in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "result.json"
        child = [__file__, "--child", name, "--models", str(count), "--result", str(file)]
        launch = ["-m", "dashboard", "run", "--quiet", *child, "--recorded"] if is_recorded else child
        environment = {
            **os.environ,
            "NANSCOPE_SPOOL": str(Path(folder) / "spool"),
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": str(ROOT),
        }
        subprocess.run([sys.executable, *launch], env=environment, check=True, cwd=folder)
        result: dict[str, Any] = json.loads(file.read_text())
        return result


def print_program(name: str, count: int, repeats: int) -> None:
    """One row of the table."""
    pairs = [
        (measure(name, count, is_recorded=False), measure(name, count, is_recorded=True))
        for _ in range(repeats)
    ]
    recorded = [each for _, each in pairs]

    def median(of: Callable[[dict[str, Any]], float]) -> float:
        return statistics.median(map(of, recorded))

    making = median(lambda each: statistics.median(each["making"]))
    late = median(lambda each: statistics.quantiles(each["making"], n=10)[-1])
    beside = median(lambda each: statistics.median(each["beside"]))
    going = median(lambda each: statistics.median(each["going"] or [0.0]))
    recorder, helper = (median(lambda each, of=of: each[of] / count) for of in ("recorder", "helper"))
    program = statistics.median((each["cpu"] - bare["cpu"]) / count for bare, each in pairs)
    own = statistics.median(bare["cpu"] / count for bare, _ in pairs)
    print(
        f"| {name} | {count} | {own:.1f} | {making:.1f} | {late:.1f} | {beside:.1f} | {going:.1f} | "
        f"{recorder:.1f} | {helper:.1f} | {program:.1f} |"
    )


def main() -> None:
    """Measure, or be the process that is measured."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--only", nargs="+", choices=list(PROGRAMS), default=list(PROGRAMS))
    for name in ("--child", "--models", "--result"):
        parser.add_argument(name, help=argparse.SUPPRESS)
    parser.add_argument("--recorded", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        run_program(given.child, int(given.models), Path(given.result), is_recorded=given.recorded)
        return
    print("| program | models | own | making | 90 % | beside | going | recorder | helper | program |")
    print("|---|---|---|---|---|---|---|---|---|---|")
    for name in given.only:
        print_program(name, MODELS[name], given.repeats)


if __name__ == "__main__":
    main()
