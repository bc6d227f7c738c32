"""Print what the detectors cost per step: `python tests/benchmarks/bench_detectors.py`.

One by one, each detector alone, and in batches; "cold" steps run after 8 MB of other data went through the
caches, as they do in training.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from probe.detectors import (
    Detector,
    DetectorBank,
    DetectorThresholds,
    Observation,
    ObservationBatch,
    default_detectors,
)

STEPS = 3200
WARM_UP = 320
EVICTING_BYTES = 8 << 20


def observe_steps(parameters: int, steps: int, *, sigma: float) -> ObservationBatch:
    """Healthy steps of a model with two parameters per layer."""
    generator = np.random.default_rng(0)
    layers = (parameters + 1) // 2
    layer_of = (np.arange(parameters) // 2).astype(np.intp)
    norms = generator.lognormal(0.0, sigma, (steps, parameters))
    return ObservationBatch(
        steps=range(steps),
        losses=(2.0 + 0.1 * generator.standard_normal(steps)).tolist(),
        total_grad_norms=np.linalg.norm(norms, axis=1).tolist(),
        grad_norm=norms,
        grad_max_abs=norms / 3.0,
        missing=None,
        parameter_norms=[norms[step] if step % 10 == 0 else None for step in range(steps)],
        parameter_names=tuple(f"blocks.{i // 2}.{'weight' if i % 2 else 'bias'}" for i in range(parameters)),
        layer_names=tuple(f"blocks.{i}" for i in range(layers)),
        layer_of=layer_of,
    )


def cut(steps: ObservationBatch, size: int) -> list[ObservationBatch]:
    """Successive batches, each with arrays of its own."""
    return [steps.part(start, start + size) for start in range(0, len(steps.steps), size)]


def time_calls(calls: Iterable[Callable[[], object]], *, cold: bool) -> np.ndarray:
    """Return (calls,) microseconds."""
    evicting = np.zeros(EVICTING_BYTES // 8)
    spent = []
    for call in calls:
        if cold:
            evicting += 1.0
        start = time.perf_counter_ns()
        call()
        spent.append((time.perf_counter_ns() - start) / 1e3)
    return np.array(spent)


def report(label: str, spent: np.ndarray, *, steps_per_call: int = 1) -> None:
    """Print microseconds per step, after the warm-up."""
    warm = spent[WARM_UP // steps_per_call :] / steps_per_call
    print(
        f"  {label:32s} median {np.median(warm):7.1f} us/step   mean {warm.mean():7.1f}   "
        f"p95 {np.quantile(warm, 0.95):7.1f}   p99 {np.quantile(warm, 0.99):7.1f}"
    )


def time_one_by_one(detectors: list[Detector], steps: ObservationBatch, *, cold: bool) -> np.ndarray:
    """Return (steps,) microseconds."""

    def judge(observation: Observation) -> None:
        for detector in detectors:
            detector.observe(observation)

    observations = [steps.at(index) for index in range(len(steps.steps))]
    return time_calls((lambda o=o: judge(o) for o in observations), cold=cold)


def time_batches(steps: ObservationBatch, size: int, *, cold: bool) -> np.ndarray:
    """Return (batches,) microseconds."""
    bank = DetectorBank(DetectorThresholds())
    return time_calls((lambda b=b: bank.observe_batch(b) for b in cut(steps, size)), cold=cold)


def main() -> None:
    """Print one block per model size."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--parameters", type=int, nargs="*", default=[6, 45, 400, 2000])
    parser.add_argument("--sigma", type=float, default=0.3, help="scatter of the log norms")
    arguments = parser.parse_args()
    for parameters in arguments.parameters:
        print(f"{parameters} parameters")
        steps = observe_steps(parameters, STEPS, sigma=arguments.sigma)
        for cold in (False, True):
            state = "cold" if cold else "hot"
            for size in (8, 16, 32):
                report(
                    f"batches of {size}, {state}", time_batches(steps, size, cold=cold), steps_per_call=size
                )
            alone = time_one_by_one(default_detectors(DetectorThresholds()), steps, cold=cold)
            report(f"one by one, {state}", alone)
        for detector in default_detectors(DetectorThresholds()):
            spent = time_calls(
                (
                    lambda b=b, d=detector: d.learn_quiet(b) or [d.observe(b.at(i)) for i in range(16)]
                    for b in cut(steps, 16)
                ),
                cold=False,
            )
            report(f"  {type(detector).__name__}, of 16", spent, steps_per_call=16)


if __name__ == "__main__":
    main()
