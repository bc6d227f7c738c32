"""`monitor_resources`: what is used of processors, memory and GPU now, and what of it is above a limit."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable
from typing import Any, Final, Protocol

import torch

from ...compat import torch_memory
from ...compat.weak_tables import WeakTable
from ...delivery.host_memory import read_memory
from ...delivery.utilisation import Utilisation, UtilisationReader
from ...detectors.base import Finding
from ..progress_calls import recording

_logger = logging.getLogger(__name__)
_FIRST_S: Final = 0.1
"""Over which processors are measured at the first call; later ones measure since the one before."""
_MIB: Final = 2**20


class FindingTaker(Protocol):
    """A session."""

    def record_finding(self, finding: Finding) -> None:
        """Write an event."""
        ...


def monitor_resources(
    cpu_percent: float | None = 90.0,
    memory_percent: float | None = 90.0,
    gpu_memory_mb: float | None = None,
    gpu_percent: float | None = None,
    *,
    logger: logging.Logger | None = None,
    sessions: Iterable[FindingTaker] | None = None,
) -> dict[str, Any]:
    """Read what is used of the machine and the GPU, and say what is above a limit.

    What is above is logged as a warning at each call, and is an event (`high_resource_use`) of the running
    sessions when it first is, and again after it was below. A limit that is None is not checked. The first
    call takes 0.1 s. A training on the CPU may well use all processors.

    Args:
        cpu_percent: limit of the use of all processors, by everything on the machine, 0-100.
        memory_percent: limit of the machine's memory in use, 0-100.
        gpu_memory_mb: limit of what torch has allocated on the current CUDA device, in MiB.
        gpu_percent: limit of the device's utilisation, 0-100.
        logger: gets the warnings.
        sessions: get the events; all that are running by default.

    Returns:
        `cpu_percent`, `process_cpu_percent`, `memory_percent`, `process_memory_mb`, `gpu_memory_mb`,
        `gpu_percent` (None where there is nothing to read), `above`: a list of names, and `warnings`: a
        sentence for each of them.

    Raises:
        ValueError: a limit is no number of at least 0.
    """
    limits = {
        "cpu_percent": cpu_percent,
        "memory_percent": memory_percent,
        "gpu_memory_mb": gpu_memory_mb,
        "gpu_percent": gpu_percent,
    }
    for name, limit in limits.items():
        if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int | float) or limit < 0):
            raise ValueError(f"{name}={limit!r} must be a number of at least 0, or None: not checked")
    readings = _readings()
    above = {
        name: limit
        for name, limit in limits.items()
        if limit is not None and (value := readings[name]) is not None and value > limit
    }
    sentences = {
        name: f"{_WORDS[name].format(readings[name])}, above {limit:g}" for name, limit in above.items()
    }
    for sentence in sentences.values():
        (logger or _logger).warning("nanscope: %s", sentence)
    for session in list(recording if sessions is None else sessions):
        _tell(session, sentences, readings, above)
    return {**readings, "above": list(above), "warnings": list(sentences.values())}


_WORDS: Final = {
    "cpu_percent": "High CPU usage: {:.1f} % of all processors' time",
    "memory_percent": "High memory usage: {:.1f} % of the machine's memory",
    "gpu_memory_mb": "High GPU memory usage: {:,.0f} MiB",
    "gpu_percent": "High GPU usage: {:.0f} % of the time",
}


class _Shares:
    """The newest shares, over a tenth of a second at least: processors' times come in hundredths."""

    def __init__(self) -> None:
        self._reader = UtilisationReader()
        self._newest = Utilisation()
        self._read_s: float | None = None

    def read(self) -> Utilisation:
        if self._read_s is None:
            self._reader.read()
            time.sleep(_FIRST_S)
            self._read_s = 0.0
        if time.monotonic() - self._read_s >= _FIRST_S:
            self._newest, self._read_s = self._reader.read(), time.monotonic()
        return self._newest


_shares = _Shares()
_said: WeakTable[Any, set[str]] = WeakTable()
"""What each session has an event of, and is still above its limit."""


def _readings() -> dict[str, float | None]:
    used, memory = _shares.read(), read_memory()
    is_on_gpu = torch_memory.cuda_is_initialised()
    return {
        "cpu_percent": _percent(used.system_cpu),
        "process_cpu_percent": _percent(used.process_cpu),
        "memory_percent": None
        if memory is None
        else 100.0 * memory.system_used_bytes / memory.system_total_bytes,
        "process_memory_mb": None if memory is None else memory.rss_bytes / _MIB,
        "gpu_memory_mb": torch.cuda.memory_allocated() / _MIB if is_on_gpu else None,
        "gpu_percent": _percent(used.gpu),
    }


def _percent(share: float | None) -> float | None:
    return None if share is None else 100.0 * share


def _tell(
    session: FindingTaker,
    sentences: dict[str, str],
    readings: dict[str, float | None],
    above: dict[str, float],
) -> None:
    said = _said.setdefault(session, set())
    said &= set(above)
    for name, sentence in sentences.items():
        if name in said:
            continue
        said.add(name)
        session.record_finding(
            Finding(
                kind="high_resource_use",
                severity="warning",
                subject=name,
                message=sentence,
                value=readings[name],
                threshold=float(above[name]),
            )
        )
