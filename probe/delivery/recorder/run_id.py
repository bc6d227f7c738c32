"""Names a run: what the user chose, else what the ranks of one launcher have in common, else random."""

from __future__ import annotations

import hashlib
import os
import re
import threading
import time
import weakref
from collections.abc import Mapping
from typing import Final

_VALID: Final = re.compile(r"(?!\.{1,2}$)[A-Za-z0-9._-]{1,64}")
_groups: Final[dict[tuple[int, str | None], str]] = {}
"""By process, of which a forked child is another one, and by the notebook's cell."""
_holders: Final[dict[tuple[int, str], weakref.ref[threading.Thread]]] = {}
"""By process and run id that several sessions may derive, the thread that has it."""
_JOB_IDS: Final = ("TORCHELASTIC_RUN_ID", "SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID", "JOB_ID")


def derive_run_id(environment: Mapping[str, str] = os.environ) -> str:
    """Return the run id: `NANSCOPE_RUN`, else the same for all ranks of one launcher, else random.

    A launcher is recognised by `MASTER_ADDR` and `MASTER_PORT` (torchrun and Slurm scripts set them); the
    id then also depends on the parent process, so that a second launch on the same port is another run.
    Draws nothing from the `random` module, whose state belongs to the training script.

    Raises:
        ValueError: `NANSCOPE_RUN` is not 1-64 of `[A-Za-z0-9._-]`.
    """
    if chosen := environment.get("NANSCOPE_RUN"):
        if _VALID.fullmatch(chosen) is None:
            raise ValueError(f"NANSCOPE_RUN is {chosen!r}; allowed are 1 to 64 of A-Z a-z 0-9 . _ -")
        return chosen
    if "MASTER_ADDR" in environment and "MASTER_PORT" in environment:
        job = next((environment[name] for name in _JOB_IDS if environment.get(name)), "")
        parts = (job, environment["MASTER_ADDR"], environment["MASTER_PORT"], *_parent_identity())
        digest = hashlib.sha256("\x1f".join(parts).encode("utf-8", "surrogatepass")).hexdigest()
        return f"job-{digest[:16]}"
    return f"{time.strftime('%Y%m%d-%H%M%S')}-{os.urandom(4).hex()}"


def run_id_of_thread(asked: str | None, environment: Mapping[str, str] = os.environ) -> str:
    """Return the run id for a session of this thread: what is asked for, or derived and no other thread's.

    Trainings that run at the same time in threads of a process would otherwise be starts of one run, of which
    the newest hides the others. The thread that ends gives its id back.

    Args:
        asked: the option `run`, if any; it may come from the environment.
        environment: as `derive_run_id` takes it.

    Raises:
        ValueError: as `derive_run_id`.
    """
    base = chosen = asked or derive_run_id(environment)
    is_shared = base == environment.get("NANSCOPE_RUN") or (not asked and base.startswith("job-"))
    if not is_shared:
        return base
    here, number = weakref.ref(threading.current_thread()), 1
    while (holder := _holders.setdefault((os.getpid(), chosen), here)()) is not here():
        if holder is None or not holder.is_alive():
            _holders[os.getpid(), chosen] = here
            break
        number += 1
        tail = f"-{number}"
        chosen = base[: 64 - len(tail)] + tail
    return chosen


def group_of(run: str, cell: str | None = None) -> str:
    """Return the group of a session: the id of this process's first run, which its ranks have in common.

    Args:
        run: id of the session's run.
        cell: of a notebook, whose process outlives its trainings: each cell that is executed begins a group.
    """
    return _groups.setdefault((os.getpid(), cell), run)


def has_begun() -> bool:
    """Whether this process has had a session, whoever began it."""
    return any(pid == os.getpid() for pid, _ in _groups)


def _parent_identity() -> tuple[str, str]:
    """Process id and start time of the parent: process ids come around again."""
    import psutil

    parent = os.getppid()
    try:
        return str(parent), str(psutil.Process(parent).create_time())
    except psutil.Error:
        return str(parent), ""
