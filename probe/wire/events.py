"""Makes an event with what every event of a rank has in common. Loads no torch."""

from __future__ import annotations

from typing import Any

from .identities import event_id, member_number
from .records import Event, RunStart


def make_event(
    start: RunStart,
    model: str,
    kind: str,
    subject: str,
    *,
    step: int,
    time: float,
    repetition: int = 0,
    **fields: Any,
) -> Event:
    """Make an event in its first state, with its deterministic id.

    Args:
        start: the incarnation that it is about.
        model: name of the naming root.
        kind: one of `wire.KINDS`.
        subject: what of the kind: a layer, a state, an action.
        step: number of the step.
        time: UNIX seconds.
        repetition: how many events of the kind and subject the step had before, where several are meant.
        **fields: the others of `Event`; `last_step` is `step` where it is not given.
    """
    identity = event_id(
        run=start.run,
        rank=start.rank,
        incarnation=start.incarnation,
        model=model,
        kind=kind,
        subject=subject,
        step=step,
        repetition=repetition,
        member=member_number(start.member),
    )
    return Event(
        id=identity,
        run=start.run,
        rank=start.rank,
        incarnation=start.incarnation,
        model=model,
        kind=kind,
        subject=subject,
        step=step,
        time=time,
        member=start.member,
        **{"last_step": step, **fields},
    )
