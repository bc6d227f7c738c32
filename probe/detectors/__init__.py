"""Detectors: one family of failures per file. Numbers in, findings out; numpy only."""

from __future__ import annotations

from .bank import DetectorBank, default_detectors
from .base import Detector, DetectorThresholds, Finding, Observation, ObservationBatch

__all__ = [
    "Detector",
    "DetectorBank",
    "DetectorThresholds",
    "Finding",
    "Observation",
    "ObservationBatch",
    "default_detectors",
]
