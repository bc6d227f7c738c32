"""What is known of an outlet that sends: for `/health`, the page's notices and the metrics. Pure data."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class OutletStatus:
    """State of one outlet; holds no address and no secret."""

    name: str
    kind: str
    """`json`, `slack`, `discord` or `otlp`."""
    sent: int = 0
    """Requests that were taken."""
    failed: int = 0
    """Requests that were abandoned."""
    dropped: int = 0
    """Events that were never sent, as too many waited."""
    waiting: int = 0
    """Events that wait."""
    last_success_time: float | None = None
    """UNIX seconds."""
    problem: str | None = None
    """Why the newest request failed; None after one that was taken."""
