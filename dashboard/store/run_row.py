"""One run, as lists show it: what the HTTP API sends and `Client` reads. Imports nothing heavy."""

from __future__ import annotations

import msgspec


class RunRow(msgspec.Struct, frozen=True, kw_only=True):
    """One run."""

    run: str
    name: str
    started: float
    """UNIX seconds."""
    written: float
    """When its newest step was made; UNIX seconds."""
    state: str
    """running, finished, exception, killed or silent."""
    group: str
    """The same for the models of one training."""
    member: int | None = None
    """Which of the models that one run makes one after the other; None where there is one."""
    starred: bool = False
    """It is kept: the spool's cap passes it over."""
    note: str = ""
