"""A fault that lasts: steps that are bad as those before them, and only count in events that are open.

Such a step needs no evidence, and no detectors if both its loss and its gradients are bad. The judge asks for
a `LastingFault` after each bad step and compares the next one with it; `incidents.py` counts, under its lock.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from ..detectors.base import Finding, Observation, ObservationBatch
from ..detectors.episodes import EpisodeTracker
from ..detectors.judged_step import HELD_KINDS
from ..detectors.nonfinite import has_nonfinite_gradient
from ..wire import Event
from .consequences import NONFINITE, WarnedSteps

_NEVER: Final = frozenset({*HELD_KINDS, "amp_overflow"})
"""What is found depends on the steps before: each has to be judged by itself."""


@dataclass(frozen=True, slots=True, eq=False)
class LastingFault:
    """What was bad at a step, and what that was found to be."""

    findings: tuple[Finding, ...]
    """As they count, at most one of a kind: all of them in events that are open."""
    has_bad_loss: bool
    has_bad_gradients: bool
    has_bad_parameters: bool

    @property
    def is_whole(self) -> bool:
        """Whether loss and gradients are bad, and nothing else was found: detectors have nothing to see."""
        return self.has_bad_loss and self.has_bad_gradients and self.nonfinite == self.findings

    @property
    def nonfinite(self) -> tuple[Finding, ...]:
        """What says that values are not finite."""
        return tuple(finding for finding in self.findings if finding.kind in NONFINITE)


def bad_parts(fault: LastingFault | None) -> tuple[int, int, int]:
    """Return whether loss, gradients and parameters are not finite, as C has it."""
    if fault is None:
        return 0, 0, 0
    return int(fault.has_bad_loss), int(fault.has_bad_gradients), int(fault.has_bad_parameters)


def lasting_fault(
    findings: Sequence[Finding], observation: Observation, *, episodes: EpisodeTracker, model: str
) -> LastingFault | None:
    """Return what a bad step has that began no event; None where the next one has to be judged by itself.

    Args:
        findings: of the step, as they were counted.
        observation: the step; its parameters were measured if they are bad.
        episodes: of the steps' detectors.
        model: name of the naming root.
    """
    by_kind = {finding.kind: finding for finding in reversed(findings)}
    if by_kind.keys().isdisjoint(NONFINITE) or not by_kind.keys().isdisjoint(_NEVER):
        return None
    if any(episodes.running(model, kind) is None for kind in by_kind):
        return None
    norms = observation.parameter_norm
    return LastingFault(
        findings=tuple(by_kind.values()),
        has_bad_loss=observation.loss is not None and not np.isfinite(observation.loss),
        has_bad_gradients=has_nonfinite_gradient(observation),
        has_bad_parameters=norms is not None and not np.isfinite(norms).all(),
    )


def count_steps(
    fault: LastingFault,
    batch: ObservationBatch,
    times: Sequence[float],
    *,
    episodes: EpisodeTracker,
    warned: WarnedSteps,
    model: str,
) -> Iterator[Event]:
    """Count steps in the events that are open, and yield those that are to be written again.

    Args:
        fault: what each of the steps has.
        batch: the steps.
        times: UNIX seconds of each.
        episodes: of the steps' detectors.
        warned: is told of the steps.
        model: name of the naming root.
    """
    running = [episodes.running(model, one.kind) for one in fault.findings]
    for step, time in zip(batch.steps, times, strict=True):
        yield from episodes.update(step, time, fault.findings, model=model, make_event=None)
        warned.note(step, fault.findings, running)
