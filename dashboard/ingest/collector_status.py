"""What is known of a collector, for the page, `/metrics` and `doctor`. Made by `collector.py`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectorStatus:
    """What the page and `doctor` show of the collector."""

    endpoint: str = ""
    helpers: int = 0
    """Helpers that have proved the secret and have not been silent for a minute."""
    runs: frozenset[str] = frozenset()
    """What these ship."""
    refused_handshakes: int = 0
    has_met_other_secret: bool = False
    """Within the last minute a training's helper has come that knows another ingest secret."""
    malformed_messages: int = 0
    """Of helpers that have proved the secret."""
    stranger_messages: int = 0
    """Messages that could not be read, of whatever else has found the port."""
    ended_connections: int = 0
    """Connections that went beyond a limit, see `connections.py`."""
    ended_reason: str = ""
    """Why the newest of them was ended."""
    batches: int = 0
    last_message_time: float | None = None
    """UNIX seconds."""
    store_problem: str | None = None
    """Why the last commit failed; None while all is well."""
    losses: tuple[str, ...] = ()
    """What helpers have said to be missing in journals, and of odd files; sentences, the first 100."""
