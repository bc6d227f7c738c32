"""Prints what capturing a step costs on the training thread, and how long a replay takes beside a step.

Run as ``python tests/benchmarks/bench_capture.py``; times are medians in microseconds or milliseconds.
"""

import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from probe.forensics.capture import RootCapture, begin_capture
from probe.forensics.replay import locate_origin
from probe.threads.stacks import capture_stack

LIMIT = 1 << 30


class PlantedNorm(nn.Module):
    """`sqrt` of a square: its derivative is infinite at zero, where this one is."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.sqrt((x - x) * x)


def small() -> tuple[nn.Module, torch.Tensor]:
    """A multi-layer perceptron of 6 parameters."""
    body = [nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), PlantedNorm(), nn.Linear(64, 10)]
    return nn.Sequential(*body), torch.randn(32, 64)


def transformer() -> tuple[nn.Module, torch.Tensor]:
    """Six encoder layers of width 128."""
    layers = [nn.TransformerEncoderLayer(128, 4, 256, batch_first=True) for _ in range(6)]
    return nn.Sequential(*layers, PlantedNorm()), torch.randn(8, 64, 128)


def many_tensors() -> tuple[nn.Module, torch.Tensor]:
    """2,000 parameters in 500 blocks of Linear and LayerNorm."""
    blocks = [layer for _ in range(500) for layer in (nn.Linear(32, 32), nn.LayerNorm(32))]
    return nn.Sequential(*blocks, PlantedNorm()), torch.randn(16, 32)


def captured_step(model: nn.Module, x: torch.Tensor) -> tuple[RootCapture, torch.Tensor]:
    """One forward and backward, captured."""
    capture = begin_capture(model, (x,), {}, size_cap_bytes=LIMIT)
    output = model(x)
    capture.finish(output)
    loss = output.mean()
    capture.note_backward([loss])
    loss.backward()
    return capture, loss


def median_us(function: Callable[[], object], *, repeats: int) -> float:
    """Median time of one call in microseconds."""
    times = []
    for _ in range(repeats):
        started = time.perf_counter_ns()
        function()
        times.append((time.perf_counter_ns() - started) / 1e3)
    return statistics.median(times)


def report(name: str, model: nn.Module, x: torch.Tensor) -> None:
    """Print one model's line."""
    for _ in range(3):
        capture, loss = captured_step(model, x)
        model.zero_grad()

    def step() -> None:
        model(x).mean().backward()
        model.zero_grad()

    def begin() -> None:
        begin_capture(model, (x,), {}, size_cap_bytes=LIMIT)

    output = model(x)
    capture = begin_capture(model, (x,), {}, size_cap_bytes=LIMIT)
    step_us = median_us(step, repeats=30)
    begin_us = median_us(begin, repeats=500)
    finish_us = median_us(lambda: capture.finish(output), repeats=200)
    graph_us = median_us(lambda: capture.note_backward([loss]), repeats=200)
    model.zero_grad()
    capture, loss = captured_step(model, x)
    gradients = {key: parameter.grad for key, parameter in model.named_parameters()}
    replays = [
        locate_origin(
            model,
            [capture],
            parameters=dict(model.named_parameters()),
            gradients=gradients,
            loss=loss,
            stage="local",
        )
        for _ in range(3)
    ]
    replay = min(replays, key=lambda one: one.duration_s)
    ours_us = begin_us + finish_us + graph_us
    origin = replay.origin.op if replay.origin else replay.reason
    print(
        f"{name}: step {step_us / 1e3:.2f} ms\n"
        f"  capture: begin {begin_us:.1f} us, finish {finish_us:.1f} us, backward {graph_us:.1f} us"
        f" = {100 * ours_us / step_us:.2f} % of the step\n"
        f"  replay: {replay.duration_s * 1e3:.1f} ms = {replay.duration_s * 1e6 / step_us:.1f} steps"
        f" ({replay.fidelity}, {origin})"
    )


def main() -> None:
    """Print all."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    for make in (small, transformer, many_tensors):
        report(make.__name__, *make())
    print(f"capture_stack, formatted: {median_us(capture_stack, repeats=200):.0f} us")


if __name__ == "__main__":
    main()
