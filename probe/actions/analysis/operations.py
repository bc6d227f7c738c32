"""`run.debug_metrics`: the newest runs through regions as operations, with times and memory. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from .call_results import Result

MIB: Final = 2**20


@dataclass(frozen=True, slots=True)
class OperationMode(Result):
    """What was done: which region."""

    value: str
    """Its path: ``epoch/validation``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OperationMetrics(Result):
    """One run through a region. Memory is in MB of 2**20 bytes."""

    mode: OperationMode
    execution_time: float
    """Wall-clock seconds."""
    memory_usage: float
    """Resident memory of the process at its end."""
    memory_delta: float
    """How much that grew in it."""
    gpu_memory: float | None
    """What torch had allocated on the current device at its end; None without CUDA."""
    gradient_anomalies: tuple[str, ...]
    """Events about gradients at the steps that it was a part of, a line each."""
    error: str | None
    """Class of the exception that left it."""
