"""All detectors of sampled numbers of one model; they see the samples one by one, on the training thread."""

from __future__ import annotations

import numpy as np

from .accumulation import AccumulationDetector
from .activation_values import DegenerateOutputDetector, NonFiniteActivationDetector
from .activations import DeadUnitDetector, SaturationDetector
from .base import Finding
from .convergence import PlateauDetector
from .initialization import InitializationDetector
from .inputs import InputDetector
from .not_updated import NotUpdatedDetector
from .overfitting import OverfittingDetector
from .performance import AnomalyRateDetector, SlowdownDetector
from .sample import Sample, SampleDetector
from .sampled_thresholds import SampledThresholds
from .updates import UpdateRatioDetector


class SampledDetectorBank:
    """One detector of every family, each with its own history: a fresh bank for every model.

    What lasts is found at every sample while it does, also at those that did not measure it anew.

    Attributes:
        anomaly_rate: is to be told (`note`) the steps with a warning of the detectors that see every step.
        accumulation: is to be told (`note`) of every update whether the gradients had been cleared.
    """

    def __init__(self, thresholds: SampledThresholds) -> None:
        self.anomaly_rate = AnomalyRateDetector(thresholds)
        self.accumulation = AccumulationDetector(thresholds)
        self._detectors: list[SampleDetector] = [
            InputDetector(thresholds),
            NonFiniteActivationDetector(),
            InitializationDetector(thresholds),
            DeadUnitDetector(thresholds),
            SaturationDetector(thresholds),
            DegenerateOutputDetector(thresholds),
            NotUpdatedDetector(thresholds),
            UpdateRatioDetector(thresholds),
            PlateauDetector(thresholds),
            OverfittingDetector(thresholds),
            SlowdownDetector(thresholds),
            self.accumulation,
            self.anomaly_rate,
        ]

    def observe(self, sample: Sample) -> list[Finding]:
        """Return what is wrong at this step, at most one finding of a kind; empty when nothing is."""
        with np.errstate(all="ignore"):
            return [finding for detector in self._detectors for finding in detector.observe(sample)]
