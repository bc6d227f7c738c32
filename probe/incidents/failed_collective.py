"""Adds to the event of an exception that a collective has raised in which one each rank was."""

from __future__ import annotations

import re
from pathlib import Path
from types import TracebackType
from typing import Any, Final

from ..threads.collective_calls import wait_of_traceback

_OF_NETWORK: Final = re.compile(r"gloo|nccl|c10d|timed? ?out|connection|socket|\bpeer\b|watchdog", re.I)
"""What backends say where ranks do not meet; an argument that a collective refuses is another matter."""


def add_collective(
    fields: dict[str, Any],
    error: BaseException,
    trace: TracebackType | None,
    *,
    step: int,
    folder: Path,
    world_size: int,
) -> None:
    """Name the collective that has raised, and what the other ranks of this host wait in.

    Args:
        fields: of the event, as `describe_failure` has made them.
        error: the exception.
        trace: its traceback.
        step: number of the step under way.
        folder: of the rank, `SPOOL/<run>/<rank>-<incarnation>`.
        world_size: how many ranks there are.
    """
    if not isinstance(error, RuntimeError | TimeoutError) or not _OF_NETWORK.search(str(error)):
        return
    wait = wait_of_traceback(trace)
    if wait is None:
        return
    from ..delivery.journal.rank_events import explain_wait
    from ..detectors.ranks.waits import ADVICE

    first, *others = fields["message"].splitlines()
    fields["message"] = "\n".join([first, wait.line(), *others])
    if (explained := explain_wait(folder, wait, world_size=world_size)) is not None:
        place = f"({fields['subject']} at step {step}, {wait.place})"
        fields["message"] = "\n".join(
            [f"{explained[:1].upper()}{explained[1:]} {place}", wait.line(), *others]
        )
        fields["advice"] = list(ADVICE)
