"""What a rank waits in, as a line of its event: which collective, which one of its group, from which line.

Written into the rank's own journal by the probe, and read from there by the code that compares ranks. Pure.
"""

from __future__ import annotations

import re
from typing import Final

import msgspec

_PREFIX: Final = "Collective: "
_LINE: Final = re.compile(
    r"`(?P<op>[^`]{1,80})`(?: \(number (?P<number>\d{1,18})\))?"
    r"(?: in group `(?P<group>[^`]{1,80})`)?(?: with (?P<tensor>[^`]{1,200}?))?, called at (?P<place>.+)"
)


class CollectiveWait(msgspec.Struct, frozen=True, kw_only=True):
    """A rank is in a collective, and has not come out of it."""

    op: str
    """Function of torch.distributed, `backward` or `wait`."""
    number: int | None
    """How many collectives the group has begun on this rank, with this one; None where it is not known."""
    group: str
    """Name of the process group; empty for that of all ranks."""
    tensor: str
    """What is sent: "float32 of shape (3, 4)"; empty where it is none."""
    place: str
    """The script's line: "train.py:30"."""

    def line(self) -> str:
        """The line of the event's message."""
        number = "" if self.number is None else f" (number {self.number})"
        group = f" in group `{self.group}`" if self.group else ""
        tensor = f" with {self.tensor}" if self.tensor else ""
        return f"{_PREFIX}`{self.op}`{number}{group}{tensor}, called at {self.place}"


def wait_in(message: str) -> CollectiveWait | None:
    """Return what an event's message says of a collective; None where it says nothing of one."""
    for line in message.splitlines():
        if line.startswith(_PREFIX) and (found := _LINE.fullmatch(line.removeprefix(_PREFIX))):
            number = found["number"]
            return CollectiveWait(
                op=found["op"],
                number=None if number is None else int(number),
                group=found["group"] or "",
                tensor=found["tensor"] or "",
                place=found["place"],
            )
    return None
