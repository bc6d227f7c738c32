"""Print what the default detectors cost per step: `python tests/benchmarks/bench_detectors.py`."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from probe.detectors import Detector, DetectorThresholds, Observation, default_detectors

STEPS = 1500


def observations(layers: int, steps: int) -> list[Observation]:
    """Healthy steps of a model with two parameters per layer."""
    generator = np.random.default_rng(0)
    names = tuple(f"blocks.{i // 2}.{'weight' if i % 2 else 'bias'}" for i in range(2 * layers))
    layer_names = tuple(f"blocks.{i}" for i in range(layers))
    layer_of = np.repeat(np.arange(layers), 2).astype(np.intp)
    result = []
    for step in range(steps):
        norms = generator.lognormal(0.0, 0.3, 2 * layers)
        result.append(
            Observation(
                step=step,
                loss=2.0 + 0.1 * float(generator.standard_normal()),
                total_grad_norm=float(np.linalg.norm(norms)),
                grad_norm=norms,
                grad_max_abs=norms / 3.0,
                grad_nan_count=np.zeros(2 * layers),
                grad_inf_count=np.zeros(2 * layers),
                missing=np.zeros(2 * layers, dtype=np.bool_),
                parameter_norm=norms if step % 10 == 0 else None,
                parameter_names=names,
                layer_names=layer_names,
                layer_of=layer_of,
            )
        )
    return result


def time_steps(detectors: list[Detector], steps: list[Observation]) -> np.ndarray:
    """Return (steps,) milliseconds."""
    spent = []
    for observation in steps:
        start = time.perf_counter()
        for detector in detectors:
            detector.observe(observation)
        spent.append((time.perf_counter() - start) * 1e3)
    return np.array(spent)


def report(label: str, spent: np.ndarray) -> None:
    """Print median and tails after the warm-up."""
    warm = spent[200:]
    print(
        f"{label:34s} median {np.median(warm):7.4f} ms   p95 {np.quantile(warm, 0.95):7.4f} ms   "
        f"p99 {np.quantile(warm, 0.99):7.4f} ms   worst {spent.max():7.3f} ms"
    )


def main() -> None:
    """Print one block per model size: all detectors, then each alone."""
    for layers in (20, 200, 1000, 2000):
        steps = observations(layers, STEPS)
        report(f"{layers} layers, all", time_steps(default_detectors(DetectorThresholds()), steps))
        for detector in default_detectors(DetectorThresholds()):
            report(f"  {type(detector).__name__}", time_steps([detector], steps))


if __name__ == "__main__":
    main()
