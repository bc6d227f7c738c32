"""High use of the machine: memory that is nearly used up, on request processors. Numbers in, findings out.

Called by the leak watch on the training thread, with a new reading about once a second.
"""

from __future__ import annotations

from typing import Final

import msgspec

from .base import Finding


class ResourceReading(msgspec.Struct, frozen=True, kw_only=True):
    """What is used of a machine, a process and a device at one moment; None: not known."""

    step: int
    system_used_bytes: float | None = None
    system_total_bytes: float | None = None
    """Of the machine, or what its container may use."""
    process_bytes: float | None = None
    swap_used_bytes: float | None = None
    device_used_bytes: float | None = None
    """By all processes, not by this one alone."""
    device_total_bytes: float | None = None
    cpu_fraction: float | None = None
    """Of all processors."""
    gpu_fraction: float | None = None
    """Of the time in which the device ran a kernel."""


class ResourceLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Shares (0-1) above which use is high. None: never.

    Raises:
        ValueError: a limit is out of its range; names it, what it got and what is allowed.
    """

    system_fraction: float | None = 0.90
    device_fraction: float | None = 0.95
    cpu_fraction: float | None = None
    """Training uses all processors where it can: a limit only on request."""
    gpu_fraction: float | None = None
    """Utilisation of the device: a limit only on request."""
    device_bytes: float | None = None
    """Bytes in use on the device, by all processes, beside `device_fraction`."""
    readings: int = 5
    """In a row, about a second apart."""

    def __post_init__(self) -> None:
        for name in ("system_fraction", "device_fraction", "cpu_fraction", "gpu_fraction"):
            self._check(name, 1.0)
        self._check("device_bytes", float("inf"))
        if not isinstance(self.readings, int) or isinstance(self.readings, bool) or self.readings < 1:
            raise ValueError(f"readings={self.readings!r} must be a whole number of at least 1")

    def _check(self, name: str, most: float) -> None:
        value = getattr(self, name)
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if value is not None and not (is_number and 0 < value <= most):
            allowed = "above 0" if most > 1 else "above 0 and at most 1"
            raise ValueError(f"{name}={value!r} must be a number {allowed}, or None for no limit")


_EASED: Final = 0.05
"""An episode is over when the share is this far below its limit."""
_MAIN_USER: Final = 0.5
"""The process has this share of what is used: else memory is short because of others."""


class ResourceDetector:
    """Emits `high_resource_use`: a warning for the machine's memory, information for the rest.

    Each subject is said once, and again after it has eased.
    """

    def __init__(self, limits: ResourceLimits | None = None) -> None:
        self._limits = limits or ResourceLimits()
        self._above: dict[str, int] = {}
        self._said: set[str] = set()
        self._swap: float | None = None

    def observe(self, reading: ResourceReading) -> list[Finding]:
        """Return what is high for the fifth reading in a row."""
        found = [
            self._system(reading),
            self._device(reading),
            self._device_size(reading),
            self._share("cpu", reading.cpu_fraction, self._limits.cpu_fraction, reading.step),
            self._share("gpu", reading.gpu_fraction, self._limits.gpu_fraction, reading.step),
        ]
        return [finding for finding in found if finding is not None]

    def _is_due(self, subject: str, share: float, limit: float) -> bool:
        if share < limit - _EASED:
            self._said.discard(subject)
        if share <= limit:
            self._above[subject] = 0
            return False
        count = self._above[subject] = self._above.get(subject, 0) + 1
        if count < self._limits.readings or subject in self._said:
            return False
        self._said.add(subject)
        return True

    def _system(self, reading: ResourceReading) -> Finding | None:
        used, total, own = reading.system_used_bytes, reading.system_total_bytes, reading.process_bytes
        limit = self._limits.system_fraction
        before, self._swap = self._swap, reading.swap_used_bytes
        if limit is None or used is None or not total or own is None:
            return None
        swaps = before is not None and self._swap is not None and self._swap > before
        if not (own >= _MAIN_USER * used or swaps):
            return None
        if not self._is_due("memory", used / total, limit):
            return None
        return Finding(
            kind="high_resource_use",
            severity="warning",
            subject="memory",
            message=f"{used / total:.0%} of the memory is used at step {reading.step}: {_gib(used)} of "
            f"{_gib(total)}, {_gib(own)} by this process{', and the machine swaps' if swaps else ''}",
            value=used / total,
            threshold=limit,
            baseline={"used_bytes": used, "total_bytes": total, "process_bytes": own},
        )

    def _device(self, reading: ResourceReading) -> Finding | None:
        used, total, limit = (
            reading.device_used_bytes,
            reading.device_total_bytes,
            self._limits.device_fraction,
        )
        if limit is None or used is None or not total or not self._is_due("device", used / total, limit):
            return None
        return Finding(
            kind="high_resource_use",
            severity="info",
            subject="device memory",
            message=f"{used / total:.0%} of the device's memory is used at step {reading.step}: {_gib(used)} "
            f"of {_gib(total)}",
            value=used / total,
            threshold=limit,
            baseline={"used_bytes": used, "total_bytes": total},
        )

    def _device_size(self, reading: ResourceReading) -> Finding | None:
        used, limit = reading.device_used_bytes, self._limits.device_bytes
        if limit is None or used is None or not self._is_due("device size", used / limit, 1.0):
            return None
        return Finding(
            kind="high_resource_use",
            severity="warning",
            subject="device memory limit",
            message=f"{_gib(used)} of the device's memory are used at step {reading.step}, above the "
            f"limit of {_gib(limit)}",
            value=used,
            threshold=limit,
        )

    def _share(self, subject: str, share: float | None, limit: float | None, step: int) -> Finding | None:
        if limit is None or share is None or not self._is_due(subject, share, limit):
            return None
        return Finding(
            kind="high_resource_use",
            severity="info",
            subject=subject,
            message=f"{share:.0%} of the {_WHOSE[subject]} time is used at step {step}",
            value=share,
            threshold=limit,
        )


_WHOSE: Final = {"cpu": "processors'", "gpu": "device's"}


def _gib(value: float) -> str:
    return f"{value / 2**30:.1f} GiB"
