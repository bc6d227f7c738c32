"""Detectors: one family of failures per file. Numbers in, findings out; numpy only.

Attributes load lazily: the helper compares ranks, and has no room for the others.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
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


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = ".bank" if name in ("DetectorBank", "default_detectors") else ".base"
    return getattr(import_module(home, __name__), name)
