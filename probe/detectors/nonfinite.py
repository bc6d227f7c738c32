"""Non-finite loss, gradients and parameters: always critical, judged by exact counts, needs no history.

Called on the training thread once per step. Says how far NaN and Inf have spread, never where they began:
which parameters have NaN gradients depends on where the backward pass went, not on the op that failed.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from .base import Finding, Floats, Observation, ObservationBatch

NEIGHBOURS = 20
"""How many earlier (step, value) pairs a finding carries."""


class NonFiniteDetector:
    """Emits `nonfinite_loss`, `nonfinite_gradient` and `nonfinite_parameter`, from the first step on."""

    def __init__(self) -> None:
        self._losses: deque[tuple[int, float]] = deque(maxlen=NEIGHBOURS)
        self._norms: deque[tuple[int, float]] = deque(maxlen=NEIGHBOURS)
        self._last = _LastFinite()

    def observe(self, observation: Observation) -> list[Finding]:
        """Return up to one finding of each of the three kinds."""
        loss, gradient = self._loss(observation), self._gradient(observation)
        findings = (loss, gradient, _parameter(observation, self._last))
        self._last.note(observation, is_bad=loss is not None or gradient is not None)
        if observation.loss is not None:
            self._losses.append((observation.step, observation.loss))
        if observation.total_grad_norm is not None:
            self._norms.append((observation.step, observation.total_grad_norm))
        return [finding for finding in findings if finding is not None]

    def note_bad(self, batch: ObservationBatch) -> None:
        """Note the losses and norms of steps that are not finite, as `observe` would."""
        self._losses.extend(_known(batch.steps, batch.losses)[-NEIGHBOURS:])
        self._norms.extend(_known(batch.steps, batch.total_grad_norms)[-NEIGHBOURS:])
        self._last.bad = batch.steps[-1]

    def learn_quiet(self, batch: ObservationBatch) -> bool:
        """Note the losses and norms if everything is finite."""
        losses = _known(batch.steps, batch.losses)
        norms = _known(batch.steps, batch.total_grad_norms)
        if not all(map(math.isfinite, [value for _, value in (*losses, *norms)])):
            return False
        # None is negative, and NaN would be the largest.
        if not batch.grad_max_abs.max() < math.inf:
            is_finite = np.isfinite(batch.grad_max_abs)
            if batch.missing is None or not (is_finite | batch.missing).all():
                return False
        if not all(np.isfinite(norm).all() for norm in batch.parameter_norms if norm is not None):
            return False
        self._losses.extend(losses[-NEIGHBOURS:])
        self._norms.extend(norms[-NEIGHBOURS:])
        self._last.note_quiet(batch)
        return True

    def _loss(self, observation: Observation) -> Finding | None:
        loss = observation.loss
        if loss is None or math.isfinite(loss):
            return None
        before = next((item for item in reversed(self._losses) if math.isfinite(item[1])), None)
        last = "" if before is None else f"; it was {before[1]:.4g} at step {before[0]}"
        return Finding(
            kind="nonfinite_loss",
            severity="critical",
            subject="loss",
            message=f"Loss is {spell(loss)} at step {observation.step}{last}",
            value=loss,
            threshold=None,
            baseline=None if before is None else {"last_finite": before[1]},
            neighbours=tuple(self._losses),
        )

    def _gradient(self, observation: Observation) -> Finding | None:
        nan, inf = nonfinite_elements(observation)
        if not (nan.any() or inf.any()):
            return self._total(observation)
        bad = np.flatnonzero(nan + inf > 0)
        names = observation.parameter_names
        nan_total, inf_total = int(nan.sum()), int(inf.sum())
        elements = (
            "" if observation.grad_nan_count is None else f" ({nan_total:,} NaN, {inf_total:,} Inf elements)"
        )
        message = (
            f"Gradients of {len(bad)} of {len(names)} parameters are not finite at step {observation.step}"
            f"{elements}, among them `{names[bad[0]]}`"
        )
        return self._gradient_finding(
            message,
            subject=names[bad[0]],
            value=math.nan if nan_total else math.inf,
            affected=tuple(names[i] for i in bad),
        )

    def _total(self, observation: Observation) -> Finding | None:
        """The global norm alone: NaN always counts, Inf only where nothing shows that it is mere overflow."""
        total = observation.total_grad_norm
        if total is None or math.isfinite(total) or (math.isinf(total) and has_elements(observation)):
            return None
        message = f"Global gradient norm is {spell(total)} at step {observation.step}"
        return self._gradient_finding(message, subject="gradient norm", value=total, affected=())

    def _gradient_finding(
        self, message: str, *, subject: str, value: float, affected: tuple[str, ...]
    ) -> Finding:
        return Finding(
            kind="nonfinite_gradient",
            severity="critical",
            subject=subject,
            message=message,
            value=value,
            threshold=None,
            neighbours=tuple(self._norms),
            affected=affected,
        )


class _LastFinite:
    """The newest steps at which something was known to be finite, or not to be."""

    def __init__(self) -> None:
        self.norms: int | None = None
        """Those of the parameters."""
        self.step: int | None = None
        """Loss and gradients."""
        self.bad: int | None = None
        """Loss or gradients were not."""

    def note(self, observation: Observation, *, is_bad: bool) -> None:
        norms = observation.parameter_norm
        if norms is not None and np.isfinite(norms).all():
            self.norms = observation.step
        if is_bad:
            self.bad = observation.step
        else:
            self.step = observation.step

    def note_quiet(self, batch: ObservationBatch) -> None:
        self.step = batch.steps[-1]
        measured = zip(batch.steps, batch.parameter_norms, strict=True)
        self.norms = max((step for step, norms in measured if norms is not None), default=self.norms)

    def words(self, step: int) -> str:
        """Since when a step's parameters can have been bad."""
        if self.bad is not None and self.bad < step and self.bad >= (self.step or 0):
            return f"; the loss or gradients of step {self.bad} were not finite"
        known = []
        if self.norms is not None:
            known.append(f"the norms at step {self.norms}")
        if self.step is not None:
            known.append(f"loss and gradients at step {self.step}")
        return f"; last known to be finite: {', '.join(known)}" if known else ""


def _parameter(observation: Observation, last: _LastFinite) -> Finding | None:
    norms = observation.parameter_norm
    if norms is None or np.isfinite(norms).all():
        return None
    bad = np.flatnonzero(~np.isfinite(norms))
    names = observation.parameter_names
    first = float(norms[bad[0]])
    return Finding(
        kind="nonfinite_parameter",
        severity="critical",
        subject=names[bad[0]],
        message=f"Norms of {len(bad)} of {len(names)} parameters are not finite at step {observation.step}, "
        f"among them `{names[bad[0]]}` ({spell(first)}){last.words(observation.step)}",
        value=first,
        threshold=None,
        baseline=None if last.norms is None else {"last_finite_step": float(last.norms)},
        affected=tuple(names[i] for i in bad),
    )


def nonfinite_elements(observation: Observation) -> tuple[Floats, Floats]:
    """Return NaN and Inf counts, each (parameters,); zero where the parameter has no gradient.

    Where counts were not measured, a non-finite `grad_max_abs` (or, failing that, a NaN `grad_norm`; an
    infinite one may be overflow) counts as one element.
    """
    shape = len(observation.parameter_names)
    if observation.grad_nan_count is not None or observation.grad_inf_count is not None:
        nan, inf = _counts(observation.grad_nan_count, shape), _counts(observation.grad_inf_count, shape)
    elif (values := observation.grad_max_abs) is not None:
        nan, inf = np.isnan(values).astype(np.float64), np.isinf(values).astype(np.float64)
    elif (values := observation.grad_norm) is not None:
        nan, inf = np.isnan(values).astype(np.float64), np.zeros(shape)
    else:
        return np.zeros(shape), np.zeros(shape)
    if observation.missing is not None:
        nan, inf = np.where(observation.missing, 0.0, nan), np.where(observation.missing, 0.0, inf)
    return nan, inf


def has_elements(observation: Observation) -> bool:
    """Whether the step says anything about single elements, so that an infinite norm can be told apart."""
    return any(
        column is not None
        for column in (observation.grad_nan_count, observation.grad_inf_count, observation.grad_max_abs)
    )


def has_nonfinite_gradient(observation: Observation) -> bool:
    """Whether this step's gradients must not enter any baseline. A finite global norm proves they may."""
    total = observation.total_grad_norm
    if total is not None and not math.isinf(total):
        return math.isnan(total)
    nan, inf = nonfinite_elements(observation)
    return bool(nan.any() or inf.any())


def spell(value: float) -> str:
    """Name a non-finite number the way PyTorch users do; a finite one with four digits."""
    if math.isnan(value):
        return "NaN"
    return f"{value:.4g}" if math.isfinite(value) else ("Inf" if value > 0 else "-Inf")


def _counts(column: npt.NDArray[np.float64] | None, length: int) -> Floats:
    if column is None or not column.any():
        return np.zeros(length)
    return np.clip(np.nan_to_num(column, nan=0.0, posinf=0.0, neginf=0.0), 0.0, 1e15)


def _known(steps: Sequence[int], values: Sequence[float | None]) -> list[tuple[int, float]]:
    return [(step, value) for step, value in zip(steps, values, strict=True) if value is not None]
