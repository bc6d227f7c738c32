"""`monitor_diffusion_step`: judges the latents after a denoising step; keeps counts and a bounded history.

What is wrong is logged, and is an event of the sessions that run; they get a document of each sampling, too.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Final, Protocol, overload

from torch import Tensor

from ...detectors.base import Finding
from ...wire.denoising import DENOISING_KIND
from ..progress_calls import recording
from . import tables
from .diffusion_results import DiffusionStep
from .diffusion_samplings import Sampling, monitor
from .diffusion_scale import is_last, option, scale_after, timestep_of
from .monitoring import StepFinding
from .tensor import TensorReport, analyze_tensor

_logger = logging.getLogger(__name__)
_LOG_LEVELS: Final = {"critical": logging.ERROR, "warning": logging.WARNING}
DEFAULT_DRIFT_LIMIT: Final = 3.0
"""Chosen: it leaves room for images (deviation about a half) and for guidance; a prediction of another type,
or a factor that is missing, leaves it soon."""
_MOST_SAMPLINGS: Final = 1000
"""Samplings of a process of which sessions get documents."""


class DiffusionSession(Protocol):
    """What takes events, series and documents; `Probe` is one."""

    def record_finding(self, finding: Finding) -> None:
        """Write an event."""
        ...

    def record_document(self, body: Any, *, kind: str, key: str) -> None:
        """Write a document."""
        ...

    def log(self, **values: Any) -> None:
        """Record numbers with the training step that is under way."""
        ...


@overload
def monitor_diffusion_step(
    pipeline: Any,
    step: int,
    latents: Tensor,
    callback_kwargs: None = None,
    *,
    timestep: float | Tensor | None = None,
    data_std: float | None = None,
    drift_limit: float = DEFAULT_DRIFT_LIMIT,
    logger: logging.Logger | None = None,
    sessions: Iterable[DiffusionSession] | None = None,
) -> DiffusionStep: ...


@overload
def monitor_diffusion_step(
    pipeline: Any,
    step: int,
    latents: Any,
    callback_kwargs: dict[str, Any],
    *,
    timestep: float | Tensor | None = None,
    data_std: float | None = None,
    drift_limit: float = DEFAULT_DRIFT_LIMIT,
    logger: logging.Logger | None = None,
    sessions: Iterable[DiffusionSession] | None = None,
) -> dict[str, Any]: ...


def monitor_diffusion_step(
    pipeline: Any,
    step: int,
    latents: Any,
    callback_kwargs: dict[str, Any] | None = None,
    *,
    timestep: float | Tensor | None = None,
    data_std: float | None = None,
    drift_limit: float = DEFAULT_DRIFT_LIMIT,
    logger: logging.Logger | None = None,
    sessions: Iterable[DiffusionSession] | None = None,
) -> DiffusionStep | dict[str, Any]:
    """Judge the latents after a denoising step: NaN, Inf, and their scale against the scheduler's.

    Called in a loop of your own, after `scheduler.step`, or by a pipeline:
    `pipeline(..., callback_on_step_end=probe.monitor_diffusion_step)`. Then the third argument is the
    timestep, and the fourth has the latents, and is returned as it is. What is found is logged; the first
    of a kind in a sampling is an event of the running sessions (`diffusion_nonfinite`, `diffusion_drift`).
    Waits for the device; changes nothing.

    The scale is the standard deviation over all elements; expected is that of data with `data_std` and noise
    of 1 in the scheduler's proportions after this step (`alphas_cumprod` or `sigmas`). It is judged
    while no latent is NaN or Inf.

    Args:
        pipeline: has the `scheduler`; without one, only NaN and Inf are judged.
        step: its number in the loop, 0-based; a number that does not go up begins another sampling.
        latents: floating-point, of any shape.
        callback_kwargs: what a pipeline of `diffusers` gives to its callback.
        timestep: at which the model was called; by default that of `scheduler.timesteps` at `step`.
        data_std: standard deviation of clean latents, above 0; None: the scheduler's `sigma_data`, else 1.
        drift_limit: factor above 1 by which the scale may be larger or smaller than expected.
        logger: gets what is found: NaN and Inf as ERROR, drift as WARNING. Sessions log their events by
            themselves, so that without one given, nothing more is logged beside them.
        sessions: get events, the series `diffusion/std` and `diffusion/drift`, and a document of the
            sampling; all that are running by default.

    Raises:
        ValueError: the latents are no tensor, or an option is out of range.
    """
    if callback_kwargs is not None:
        timestep, latents = latents, _latents_of(callback_kwargs)
    _check(latents, data_std, drift_limit)
    seen = _measured(pipeline, step, latents, timestep, data_std=data_std, drift_limit=drift_limit)
    sampling = monitor.take(pipeline, seen)
    takers = list(recording if sessions is None else sessions)
    if logger is not None or not takers:
        for one in seen.findings:
            (logger or _logger).log(_LOG_LEVELS[one.severity], "%s: %s", one.kind, one.message)
    _tell(takers, pipeline, seen, sampling)
    return seen if callback_kwargs is None else callback_kwargs


def _latents_of(given: Mapping[str, Any]) -> Any:
    if "latents" not in given:
        raise ValueError(
            "the pipeline hands no latents to its callback; "
            "pass callback_on_step_end_tensor_inputs=['latents']"
        )
    return given["latents"]


def _check(latents: Any, data_std: float | None, drift_limit: float) -> None:
    if not isinstance(latents, Tensor):
        raise ValueError(f"latents must be a torch.Tensor, got {type(latents).__name__}")
    if data_std is not None and not 0 < data_std < math.inf:
        raise ValueError(f"data_std={data_std!r} must be a number above 0, or None: what the scheduler says")
    if not 1 < drift_limit < math.inf:
        raise ValueError(f"drift_limit={drift_limit!r} must be a factor above 1")


def _measured(
    pipeline: Any,
    step: int,
    latents: Tensor,
    timestep: Any,
    *,
    data_std: float | None,
    drift_limit: float,
) -> DiffusionStep:
    scheduler = getattr(pipeline, "scheduler", None)
    at = timestep_of(scheduler, step) if timestep is None else float(timestep)
    scale = None if scheduler is None else scale_after(scheduler, step, at)
    report = analyze_tensor(latents, "latents")
    seen = DiffusionStep(
        step=step,
        timestep=at,
        shape=report.shape,
        dtype=report.dtype,
        norm=report.norm,
        mean=report.mean,
        std=report.std,
        min=report.min,
        max=report.max,
        nan_count=report.nan_count or 0,
        inf_count=report.inf_count or 0,
        expected_std=None if scale is None else scale.std(data_std or _data_std(scheduler)),
    )
    found = _nonfinite(seen, report) if not report.ok else _drift(seen, drift_limit)
    return seen if found is None else replace(seen, findings=(found,))


def _data_std(scheduler: Any) -> float:
    given = option(scheduler, "sigma_data")
    return float(given) if isinstance(given, int | float) and 0 < given < math.inf else 1.0


def _nonfinite(seen: DiffusionStep, report: TensorReport) -> StepFinding:
    count = seen.nan_count + seen.inf_count
    return StepFinding(
        kind="diffusion_nonfinite",
        severity="critical",
        subject="latents",
        message=f"Latents are not finite after {_where(seen)}: {seen.nan_count:,} NaN, "
        f"{seen.inf_count:,} Inf of {report.elements:,} elements",
        value=float(count),
        threshold=0.0,
    )


def _drift(seen: DiffusionStep, limit: float) -> StepFinding | None:
    drift = seen.drift
    if drift is None or 1 / limit <= drift <= limit:
        return None
    is_large = drift > 1
    times = drift if is_large else 1 / drift if drift else math.inf
    return StepFinding(
        kind="diffusion_drift",
        severity="warning",
        subject="latents",
        message=f"Latents are {times:.3g} times {'larger' if is_large else 'smaller'} than the scheduler "
        f"implies after {_where(seen)}: standard deviation {tables.number(seen.std)}, "
        f"expected {tables.number(seen.expected_std)}",
        value=drift,
        threshold=limit if is_large else 1 / limit,
    )


def _where(seen: DiffusionStep) -> str:
    return f"denoising step {seen.step}" + ("" if seen.timestep is None else f" (timestep {seen.timestep:g})")


def _tell(sessions: list[DiffusionSession], pipeline: Any, seen: DiffusionStep, sampling: Sampling) -> None:
    news = sampling.news(seen)
    ends = is_last(getattr(pipeline, "scheduler", None), seen.step, seen.timestep)
    series = {"diffusion/std": seen.std, "diffusion/drift": seen.drift}
    for session in sessions:
        session.log(**{name: value for name, value in series.items() if value is not None})
        for one in news:
            session.record_finding(_finding(one, seen, sampling.number))
        if sampling.number < _MOST_SAMPLINGS and (news or ends or sampling.is_due()):
            session.record_document(sampling.body(), kind=DENOISING_KIND, key=f"{sampling.number:06d}")


def _finding(one: StepFinding, seen: DiffusionStep, sampling: int) -> Finding:
    """With the sampling in its subject: those of one training step are events of their own."""
    facts = {"denoising_step": float(seen.step), "timestep": seen.timestep, "expected_std": seen.expected_std}
    return Finding(
        kind=one.kind,
        severity="critical" if one.severity == "critical" else "warning",
        subject=f"latents, sampling {sampling}",
        message=one.message,
        value=one.value,
        threshold=one.threshold,
        baseline={name: value for name, value in facts.items() if value is not None},
    )
