"""The document of a profile: which operations took the time, where they stand, and what is to be seen in it.

Kind `profile`; its key is the name of the trace's file without its ending. All times are seconds of all
profiled steps together. Imports no torch.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

import msgspec

KIND: Final = "profile"
FOLDER: Final = "profiles"
"""Of the traces, in the run's folder."""
TRACE_ENDING: Final = ".json.gz"
MAX_STEPS: Final = 100
"""Steps of one profile that may be asked for."""
MAX_TRACE_BYTES: Final = 64 * 1024 * 1024
"""Of a trace before it is compressed, and so on the disk too."""
MAX_ROWS: Final = 50

FindingKind = Literal["input_wait", "small_ops", "host_sync", "copies", "dominant_op", "idle_gpu"]
Name = Annotated[str, msgspec.Meta(max_length=4096)]


class OpRow(msgspec.Struct, frozen=True, kw_only=True):
    """All calls of one operation."""

    name: Name
    calls: int
    self_cpu_s: float
    """CPU time on the clock of the wall, without the operations that it calls."""
    cpu_s: float
    """With them."""
    self_cuda_s: float
    """Time of the kernels and copies that it has launched itself."""
    allocated_bytes: int
    """That it has asked the allocators for; what was freed is not taken off."""
    module: Name | None = None
    """Where most of its time is: qualified name, the root is ""; None outside any module."""
    line: Name | None = None
    """The same, as "file:line" of the script; of a backward, that of its forward."""


class PlaceRow(msgspec.Struct, frozen=True, kw_only=True):
    """All operations of one module, or of one line of the script, children of the module left out."""

    name: Name
    calls: int
    self_cpu_s: float
    backward_cpu_s: float
    """The part of `self_cpu_s` that is of the backward."""
    self_cuda_s: float
    allocated_bytes: int


class ProfileFinding(msgspec.Struct, frozen=True, kw_only=True):
    """What stands out, in plain words."""

    kind: FindingKind
    message: Annotated[str, msgspec.Meta(max_length=4096)]
    """With its numbers."""
    value: float
    threshold: float
    advice: list[Annotated[str, msgspec.Meta(max_length=4096)]] = []


class ProfileBody(msgspec.Struct, frozen=True, kw_only=True):
    """One profile."""

    first_step: int | None
    """None for a block that no run watches."""
    steps: int
    """That were profiled."""
    asked_steps: int | None
    """None for a block."""
    asked_by: Name
    wall_s: float
    """From the beginning of the profile to its end."""
    cpu_s: float
    """Self CPU time of all operations of the script."""
    cuda_s: float
    """Time in which a kernel or copy ran; 0 without CUDA."""
    has_cuda: bool
    own_s: float
    """Time of the probe's own operations, which no table has; 0 where no stacks were recorded."""
    input_wait_s: float
    """In the `__next__` of DataLoaders, on the training thread."""
    ops: Annotated[list[OpRow], msgspec.Meta(max_length=MAX_ROWS)] = []
    modules: Annotated[list[PlaceRow], msgspec.Meta(max_length=MAX_ROWS)] = []
    lines: Annotated[list[PlaceRow], msgspec.Meta(max_length=MAX_ROWS)] = []
    findings: Annotated[list[ProfileFinding], msgspec.Meta(max_length=64)] = []
    notes: Annotated[list[Annotated[str, msgspec.Meta(max_length=4096)]], msgspec.Meta(max_length=64)] = []
    """What a reader has to know of it: steps that were left out, a part that is missing."""
    trace: Name | None = None
    """Name of the trace's file in `SPOOL/<run>/profiles`, or the path that a block was given."""
    trace_bytes: int = 0
