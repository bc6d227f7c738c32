"""Detectors: one family of failures per file. Numbers in, findings out; numpy only."""

from __future__ import annotations

from .base import Detector, DetectorThresholds, Finding, Observation
from .gradients import GradientScaleDetector
from .loss import LossSpikeDetector
from .nonfinite import NonFiniteDetector
from .zero_gradient import ZeroGradientDetector

__all__ = ["Detector", "DetectorThresholds", "Finding", "Observation", "default_detectors"]


def default_detectors(thresholds: DetectorThresholds) -> list[Detector]:
    """Return one detector of every family, each with its own history: a fresh list for every model."""
    return [
        NonFiniteDetector(),
        GradientScaleDetector(thresholds),
        ZeroGradientDetector(thresholds),
        LossSpikeDetector(thresholds),
    ]
