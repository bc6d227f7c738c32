"""A comparison of modes as the document that a run keeps. Pure."""

from __future__ import annotations

import math

from ...wire.compared_modes import OptimizationBody, OptimizationRow
from .benchmark_result import ModeResult, OptimizationBenchmark


def document_body(benchmark: OptimizationBenchmark) -> OptimizationBody:
    """Return the body of the document."""
    return OptimizationBody(
        model=benchmark.model[:512],
        device=benchmark.device,
        pairs=benchmark.pairs,
        recommended=benchmark.recommended,
        why=benchmark.why[:4096],
        rows=[_row(one) for one in benchmark.results.values()],
    )


def _row(one: ModeResult) -> OptimizationRow:
    found = one.difference
    return OptimizationRow(
        mode=one.mode,
        step_s=one.step_s,
        first_step_s=one.first_step_s,
        speedup=one.speedup,
        speedup_low=one.speedup_low,
        speedup_high=one.speedup_high,
        peak_bytes=one.peak_bytes,
        memory_saved=one.memory_saved,
        output_difference=None if found is None else _finite(found.output),
        loss_difference=None if found is None else _finite(found.loss),
        gradient_difference=None if found is None else _finite(found.gradient),
        is_within=one.is_within,
        note=None if one.note is None else one.note[:4096],
        error=None if one.error is None else one.error[:4096],
    )


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
