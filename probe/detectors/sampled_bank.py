"""All detectors of sampled numbers of one model; they see the samples one by one, on the training thread."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from .accumulation import AccumulationDetector
from .activation_values import DegenerateOutputDetector, NonFiniteActivationDetector
from .activations import DeadUnitDetector, SaturationDetector
from .base import Finding
from .convergence import PlateauDetector
from .embedding_rows import EmbeddingRowsDetector
from .first_loss import FirstLossDetector
from .frozen import FrozenDetector
from .initialization import InitializationDetector
from .inputs import InputDetector
from .label_frequencies import LabelFrequencyDetector
from .loss_inputs import LossInputDetector
from .loss_shapes import LossShapeDetector
from .not_updated import NotUpdatedDetector
from .overfitting import OverfittingDetector
from .performance import AnomalyRateDetector, SlowdownDetector
from .raw_inputs import RawInputDetector
from .sample import Sample, SampleDetector
from .sampled_thresholds import SampledThresholds
from .training_values import TrainingValues
from .updates import UpdateRatioDetector
from .validation import ValidationDetector
from .wiring import WiringDetector


class SampledDetectorBank:
    """One detector of every family, each with its own history: a fresh bank for every model.

    What lasts is found at every sample while it does, also at those that did not measure it anew.

    Args:
        thresholds: of all of them.
        pause: called between two detectors: others may want the processor.

    Attributes:
        anomaly_rate: is to be told (`note`) the steps with a warning of the detectors that see every step.
        accumulation: is to be told (`note`) of every update whether the gradients had been cleared.
        wiring: is to be told of every step which parameters have no gradient.
        updates: is to be told how much weight decay takes.
        not_updated: is to be told what optimizers have that have not made a step.
        frozen: is to be told what is frozen and never learnt.
        labels: is to be told of the first losses which labels they are of.
        embedding_rows: is to be told which rows of embeddings have a gradient.
        loss_shapes, loss_inputs, first_loss: are to be told of the first losses what their graph says.
        training_values: what inputs and output were; for calls outside of the training.
    """

    def __init__(self, thresholds: SampledThresholds, *, pause: Callable[[], None] = lambda: None) -> None:
        self._pause = pause
        self.anomaly_rate = AnomalyRateDetector(thresholds)
        self.accumulation = AccumulationDetector(thresholds)
        self.wiring = WiringDetector(thresholds)
        self.updates = UpdateRatioDetector(thresholds)
        self.not_updated = NotUpdatedDetector(thresholds)
        self.loss_shapes, self.loss_inputs = LossShapeDetector(), LossInputDetector()
        self.first_loss, self.embedding_rows = FirstLossDetector(), EmbeddingRowsDetector()
        self.frozen, self.labels = FrozenDetector(), LabelFrequencyDetector(thresholds)
        self.training_values = TrainingValues()
        self._detectors: list[SampleDetector] = [
            InputDetector(thresholds),
            RawInputDetector(),
            NonFiniteActivationDetector(),
            InitializationDetector(thresholds),
            self.first_loss,
            DeadUnitDetector(thresholds),
            SaturationDetector(thresholds),
            self.loss_shapes,
            self.loss_inputs,
            DegenerateOutputDetector(thresholds),
            self.wiring,
            self.embedding_rows,
            self.frozen,
            self.not_updated,
            self.updates,
            PlateauDetector(thresholds, self.labels),
            ValidationDetector(),
            OverfittingDetector(thresholds),
            SlowdownDetector(thresholds),
            self.accumulation,
            self.anomaly_rate,
        ]

    @property
    def has_news(self) -> bool:
        """Whether a detector has been told of something that is not to wait for the next measurement."""
        told = (self.wiring, self.updates, self.embedding_rows, self.frozen, self.labels)
        return any(detector.has_news for detector in told)

    def observe(self, sample: Sample) -> list[Finding]:
        """Return what is wrong at this step, at most one finding of a kind; empty when nothing is."""
        findings: list[Finding] = []
        with np.errstate(all="ignore"):
            self.training_values.note(sample)
            for detector in self._detectors:
                findings += detector.observe(sample)
                self._pause()
        kinds: dict[str, Finding] = {}
        for finding in findings:
            kinds.setdefault(finding.kind, finding)
        return list(kinds.values())
