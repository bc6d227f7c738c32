"""Prints what measuring all gradients costs, as a share of the step: kernel, torch and numpy, foreach, naive.

    python tests/benchmarks/bench_statistics.py [--seconds 20] [--threads 1] [workload ...]

Each training step is measured in one way, the ways taking turns, after the backward and before the update:
the gradients are new and mostly out of the caches, as in use. "update" adds the norms of the parameters and
of the last update, from a copy of the parameters. Medians with quartiles of CPU time of the thread (so that
other work on the machine counts less), without the time that reading that clock takes.
"""

import argparse
import os
import sys
import time
from collections.abc import Callable
from operator import attrgetter
from pathlib import Path
from statistics import median, quantiles

import torch
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[2]))

from workloads import WORKLOADS, Workload

from probe.measure.kernels import binding
from probe.measure.statistics.statistics import plan_measurement, tensor_norms, tensor_statistics
from probe.measure.statistics.tensor_measures import difference_norms

Measure = Callable[[], object]
gradient_of = attrgetter("grad")


def by_foreach(parameters: list[nn.Parameter]) -> object:
    """The same statistics with torch's list functions; one copy to the host."""
    gradients: list[Tensor] = list(map(gradient_of, parameters))
    squares = torch._foreach_mul(gradients, gradients)
    means = [gradient.mean() for gradient in gradients]
    stds = [square.mean() for square in squares]
    bad = [gradient.isfinite().sum().float() for gradient in gradients]
    norms = torch._foreach_norm(gradients, 2)
    largest = torch._foreach_max(torch._foreach_abs(gradients))
    return torch.stack([*norms, *largest, *means, *stds, *bad]).tolist()


def naively(parameters: list[nn.Parameter]) -> object:
    """Seven statistics of each gradient, each with `.item()`."""
    return [
        [
            value.item()
            for value in (
                g.norm(),
                g.abs().max(),
                g.mean(),
                g.std(),
                g.min(),
                g.isnan().sum(),
                g.isinf().sum(),
            )
        ]
        for g in map(gradient_of, parameters)
    ]


def make_ways(parameters: list[nn.Parameter]) -> dict[str, Measure]:
    """What is compared, by name; the first gives the time of a step without any."""
    native = plan_measurement(parameters)
    os.environ["NANSCOPE_KERNEL"] = "off"
    mix = plan_measurement(parameters)
    del os.environ["NANSCOPE_KERNEL"]
    copies = [parameter.detach().clone() for parameter in parameters]

    def with_updates() -> object:
        measured = tensor_statistics(list(map(gradient_of, parameters)), native)
        return measured, tensor_norms(parameters, native), difference_norms(parameters, copies)

    return {
        "nothing": lambda: None,
        "kernel": lambda: tensor_statistics(list(map(gradient_of, parameters)), native),
        "update": with_updates,
        "mix": lambda: tensor_statistics(list(map(gradient_of, parameters)), mix),
        "foreach": lambda: by_foreach(parameters),
        "naive": lambda: naively(parameters),
    }


def measure(workload: Workload, seconds: float) -> dict[str, list[float]]:
    """Return the microseconds of each way, and of whole steps under "step"."""
    torch.manual_seed(0)
    model, compute_loss = workload.make(torch.device("cpu"))
    parameters = list(model.parameters())
    optimizer = workload.make_optimizer(parameters)
    ways = make_ways(parameters)
    spent: dict[str, list[float]] = {name: [] for name in ("step", *ways)}
    deadline, rounds = time.monotonic() + seconds, 0
    while time.monotonic() < deadline or rounds < 3:
        for name, way in ways.items():
            started = time.thread_time_ns()
            optimizer.zero_grad()
            compute_loss().backward()
            before = time.thread_time_ns()
            way()
            after = time.thread_time_ns()
            optimizer.step()
            ended = time.thread_time_ns()
            if rounds:
                spent[name].append((after - before) / 1e3)
                spent["step"].append((ended - started - (after - before)) / 1e3)
        rounds += 1
    clock_us = median(spent["nothing"])
    return {name: [value - clock_us for value in values] for name, values in spent.items()}


def describe(values: list[float], step_us: float) -> str:
    """Median and quartiles, in % of the step."""
    low, _, high = quantiles(values, n=4)
    return f"{100 * median(values) / step_us:6.2f} ({100 * low / step_us:.2f}-{100 * high / step_us:.2f})"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("workloads", nargs="*", choices=[[], *WORKLOADS], help="all by default")
    parser.add_argument("--seconds", type=float, default=20.0, help="for each workload")
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    machine = f"{arguments.threads} thread(s) of {os.cpu_count()}, load {os.getloadavg()[0]:.1f}"
    print(f"torch {torch.__version__}, {machine}; {binding.status().reason}")
    names = ("kernel", "update", "mix", "foreach", "naive")
    print(f"{'% of the step':26} {'step ms':>8} {'kernel us':>9}", *(f"{name:>19}" for name in names))
    for name in arguments.workloads or WORKLOADS:
        workload = WORKLOADS[name]
        spent = measure(workload, arguments.seconds)
        step_us = median(spent["step"])
        shares = (f"{describe(spent[way], step_us):>19}" for way in names)
        title = f"{workload.title}, {workload.tensors}"
        print(f"{title:26} {step_us / 1e3:8.1f} {median(spent['kernel']):9.0f}", *shares, flush=True)


if __name__ == "__main__":
    main()
