"""What tells events apart, and the members of a run: models that one line makes one after the other.

The first member has no field of its own in what is written, for nobody knows then whether another comes.
"""

from __future__ import annotations

import hashlib
from typing import Final

import msgspec

from .records import Member

MEMBERS_IN_FULL: Final = 100
"""Members of a run whose layouts and statistics are kept; of later ones losses, norms, times and events."""
_LONGEST_RUN_ID: Final = 64


def member_number(member: Member) -> int:
    """Return the number of a member; 0 where the field is absent."""
    return 0 if member is msgspec.UNSET else member


def member_run(run: str, member: int) -> str:
    """Return the id under which a store keeps a member of a run; that of the first is the run's own.

    Two runs whose long ids differ in their ends alone keep different ones.
    """
    if not member:
        return run
    tail = f".m{member}"
    if len(run) + len(tail) <= _LONGEST_RUN_ID:
        return run + tail
    tail = f"-{hashlib.sha256(run.encode()).hexdigest()[:8]}{tail}"
    return run[: _LONGEST_RUN_ID - len(tail)] + tail


def event_id(
    *,
    run: str,
    rank: int,
    incarnation: int,
    model: str,
    kind: str,
    subject: str,
    step: int,
    repetition: int = 0,
    member: int = 0,
) -> str:
    """Deterministic id of an event (16 hex digits): the dashboard and the offline commands agree on it.

    Args:
        run: id of the run, and so on: what tells events apart.
        rank: of the process.
        incarnation: of it.
        model: name of the naming root.
        kind: of the event.
        subject: of it.
        step: number of the step.
        repetition: how many events of that kind and subject the step had before, where several are meant.
        member: which model of the run, see `Member`.
    """
    parts = [run, str(rank), str(incarnation), model, kind, subject, str(step)]
    parts += [str(repetition)] * (repetition > 0) + [f"member {member}"] * (member > 0)
    identity = "\x1f".join(parts)
    return hashlib.sha256(identity.encode("utf-8", "surrogatepass")).hexdigest()[:16]
