"""Watches the memory of the machine and of a device; judges on the recorder's thread.

The training thread reads the device, for a CUDA call goes to the device of its thread, and takes what was
found at its next step: it is never called for a sample in which nothing is.
"""

from __future__ import annotations

from collections import deque

from ..delivery.host_memory import MemorySample
from ..detectors.base import Finding
from ..detectors.resources import ResourceDetector, ResourceLimits
from .leak_reports import resource_reading
from .memory_limit import MemoryUse, memory_use


class MachineWatch:
    """High use of memory, and of what else has a limit, from samples of about one a second.

    Attributes:
        device: newest use of the training's device, by all processes; set on the training thread.
        free_bytes: memory that is left to this process; None: not known yet.
        rss_bytes: resident memory of the newest sample; None before the first.
    """

    def __init__(self, limits: ResourceLimits | None = None) -> None:
        self.device: MemoryUse | None = None
        self.free_bytes: float | None = None
        self.rss_bytes: float | None = None
        self._resources = ResourceDetector(limits)
        self._judged_device: MemoryUse | None = None
        self._found: deque[Finding] = deque()
        """Appended to on the recorder's thread, emptied on the training thread."""

    @property
    def has_found(self) -> bool:
        """Whether something waits to be taken; from any thread."""
        return bool(self._found)

    def note(self, step: int, sample: MemorySample) -> None:
        """Judge a new sample, on the recorder's thread.

        Args:
            step: number of the newest finished step.
            sample: of process and machine.
        """
        use = memory_use(sample.system_used_bytes, sample.system_total_bytes)
        self.free_bytes, self.rss_bytes = use.total - use.used, float(sample.rss_bytes)
        device, before = self.device, self._judged_device
        self._judged_device = device
        # One that was judged is no further reading in a row.
        fresh = None if device is before else device
        self._found.extend(self._resources.observe(resource_reading(step, sample, use, fresh)))

    def take(self) -> list[Finding]:
        """Return what was found since the last time, on the training thread."""
        return [self._found.popleft() for _ in range(len(self._found))]
