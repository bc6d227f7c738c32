"""All detectors of one model, for single steps and for batches of quiet ones.

Called on the training thread. A batch costs a tenth of its steps one by one, because most batches can be
proven quiet as a whole, and learnt in a few vectorised operations.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable
from typing import Final

import numpy as np

from .base import Detector, DetectorThresholds, Finding, Observation, ObservationBatch
from .divergence import LossDivergenceDetector
from .early_divergence import EarlyDivergenceDetector
from .gradients import GradientScaleDetector
from .high_loss import HighLossDetector
from .jump_watch import JumpWatch
from .jumps import Jump
from .learning_rate import DecayedRateDetector
from .loss import LossSpikeDetector
from .loss_bound import LossBoundDetector
from .nonfinite import NonFiniteDetector
from .zero_gradient import ZeroGradientDetector

MAX_BATCH: Final = 64
"""Longer batches are judged in parts: in 64 steps every layer's medians are refreshed once."""


class DetectorBank:
    """One detector of every family, each with its own history: a fresh bank for every model.

    Args:
        thresholds: of all of them.
        pause: called between two detectors of a batch: others may want the processor.

    Attributes:
        loss_bound: is to be told of the first losses, and where it asks, which function made them.
        zeros: is to be told of the first losses what may make them, or gradients, 0.
    """

    def __init__(self, thresholds: DetectorThresholds, *, pause: Callable[[], None] = lambda: None) -> None:
        self._pause = pause
        self._detectors = default_detectors(thresholds)
        self._gradients = next(d for d in self._detectors if isinstance(d, GradientScaleDetector))
        self._nonfinite = next(d for d in self._detectors if isinstance(d, NonFiniteDetector))
        self.loss_bound = next(d for d in self._detectors if isinstance(d, LossBoundDetector))
        self.zeros = next(d for d in self._detectors if isinstance(d, ZeroGradientDetector))
        self._jumps = JumpWatch()

    def observe(self, observation: Observation) -> list[Finding]:
        """Return what is wrong at this step, at most one finding of a kind; empty when nothing is."""
        found: list[Finding] = []
        self._jumps.begin(self._gradients)
        for detector in self._detectors:
            found += detector.observe(observation)
        self._jumps.note(self._gradients)
        self._jumps.judge([observation.step], [observation.loss], [observation.total_grad_norm])
        return _first_of_kind(found)

    def observe_batch(self, batch: ObservationBatch) -> list[tuple[int, list[Finding]]]:
        """Judge successive steps: the same findings, and the same histories, as one by one.

        Returns:
            (index in the batch, findings) of the steps that have any, ascending.
        """
        found: list[tuple[int, list[Finding]]] = []
        for start in range(0, len(batch), MAX_BATCH):
            part = batch if len(batch) <= MAX_BATCH else batch.part(start, start + MAX_BATCH)
            found += [(start + index, findings) for index, findings in self._observe_part(part)]
        return found

    def pass_bad(self, batch: ObservationBatch) -> None:
        """Note successive steps that are bad as those before them: nothing is learned of NaN and Inf."""
        self._nonfinite.note_bad(batch)

    def take_jumps(self) -> list[Jump]:
        """Return the lasting jumps since the last call that are too small to be found, oldest first."""
        return self._jumps.take()

    def _observe_part(self, batch: ObservationBatch) -> list[tuple[int, list[Finding]]]:
        """Each detector that cannot prove the batch quiet sees it step by step; the others need not."""
        can_be_quiet = batch.grad_norm.size > 0 and all(map(operator.le, batch.steps, batch.steps[1:]))
        found: dict[int, list[Finding]] = {}
        observations: list[Observation] = []
        doubtful: list[Detector] = []
        self._jumps.begin(self._gradients)
        with np.errstate(all="ignore"):
            for detector in self._detectors:
                if not (can_be_quiet and detector.learn_quiet(batch)):
                    doubtful.append(detector)
                self._pause()
        if self._gradients not in doubtful:
            self._jumps.note(self._gradients)
        for detector in doubtful:
            observations = observations or [batch.at(index) for index in range(len(batch))]
            for index, observation in enumerate(observations):
                self._pause()
                if findings := detector.observe(observation):
                    found.setdefault(index, []).extend(findings)
                if detector is self._gradients:
                    self._jumps.note(self._gradients)
        self._pause()
        self._jumps.judge(batch.steps, batch.losses, batch.total_grad_norms)
        return [(index, _first_of_kind(found[index])) for index in sorted(found)]


def default_detectors(thresholds: DetectorThresholds) -> list[Detector]:
    """Return one detector of every family, each with its own history: a fresh list for every model."""
    spikes = LossSpikeDetector(thresholds)
    detectors: list[Detector] = [
        NonFiniteDetector(),
        GradientScaleDetector(thresholds),
        ZeroGradientDetector(thresholds),
        spikes,
        HighLossDetector(spikes),
        LossBoundDetector(),
        EarlyDivergenceDetector(),
        LossDivergenceDetector(),
        DecayedRateDetector(),
    ]
    if thresholds.explosion_norm is not None or thresholds.vanishing_norm is not None:
        from .limits import AbsoluteLimitDetector

        detectors.append(AbsoluteLimitDetector(thresholds))
    return detectors


def _first_of_kind(findings: Iterable[Finding]) -> list[Finding]:
    """Drop what an absolute limit says of a step on which the run's own history has spoken."""
    kinds: dict[str, Finding] = {}
    for finding in findings:
        kinds.setdefault(finding.kind, finding)
    return list(kinds.values())
