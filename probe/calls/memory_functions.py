"""The memory calls as functions: the run that is recorded in this process keeps what they measure.

Memory is of the process: with several sessions (a GAN, say) it is the one that began first.
"""

from __future__ import annotations

from functools import partial

from ..actions.analysis.memory_tracking import MemoryProfile, take_snapshot
from ..actions.analysis.memory_tracking import memory_tracking as _tracking
from ..actions.analysis.memory_tracking import profile_memory as _profile
from ..actions.analysis.snapshot_results import MemorySnapshot
from ..session import running_sessions


def take_memory_snapshot(label: str = "", *, uss: bool = True) -> MemorySnapshot:
    """Read the memory of process, machine and CUDA allocator now; a run that is recorded keeps it.

    Sizes are bytes: resident (`rss_bytes`) and unique (`uss_bytes`) pages of the process, memory of the
    machine in use (`system_used_bytes`, `cpu_memory_percent`), and `cuda_allocated`, `cuda_reserved`,
    `cuda_peak`, `cuda_fragmentation` with each device in `cuda_memory`; `time` is UNIX seconds. What the
    system does not tell is None, and so is CUDA's where this process does not use it. Initialises no CUDA,
    waits for no device. Unique pages are counted by the kernel, 10 ms for each GiB.

    Args:
        label: names it in tables, and on the page; cut off after 512 characters.
        uss: whether unique pages are counted.
    """
    sessions = running_sessions()
    return sessions[0].take_memory_snapshot(label, uss=uss) if sessions else take_snapshot(label, uss=uss)


class memory_tracking(_tracking):  # noqa: N801 - used as a function, like torch.no_grad
    """Measure what a block adds to memory: `with probe.memory_tracking() as tracked:`, then `tracked.change`.

    Nests, may be entered again, and lets exceptions through. A run that is recorded keeps both snapshots.

    Args:
        enabled: None and True measure; False does not.
        label: of the block; those with the same one are one place of a loop, of which `tracked.memory_leaks`
            says what is suspected (see `probe.profile_memory`).
    """

    def __init__(self, enabled: bool | None = None, *, label: str = "block") -> None:
        sessions = running_sessions()
        take = partial(sessions[0].take_memory_snapshot, uss=False) if sessions else None
        super().__init__(enabled, label=label, take=take, known_leaks=_found_leaks)


def profile_memory(label: str = "") -> MemoryProfile:
    """Read memory at a place of a loop: `cpu_memory` (percent), `gpu_memory` (MiB) and `memory_leaks`.

    A place is a label without its numbers (`batch_12` and `batch_13` are `batch`). Suspected is memory of
    the process or of CUDA that has grown over two windows of readings of the place in a row (32 at least,
    after the first five), in each quarter of them and at a steady pace, by 4 MiB or more; and what
    the runs that are recorded have found (`memory_leak` events). A loop that is steady, or
    fills up at its start, is not suspected.
    """
    return _profile(label, known_leaks=_found_leaks())


def _found_leaks() -> list[str]:
    return [sentence for session in running_sessions() for sentence in session.found_leaks()]
