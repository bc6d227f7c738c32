"""What `/health` answers, as types; see `models`."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, Field


class OutletHealth(BaseModel):
    """A webhook, or OpenTelemetry: what was sent, and why the newest request failed."""

    name: str
    kind: str
    sent: int
    failed: int
    dropped: int
    waiting: int
    last_success_time: float | None
    problem: str | None


class Health(BaseModel):
    """Whether the server is up."""

    status: Literal["ok"]
    instance: str = Field(description="of this process: another start of the server has another")
    runs: int
    outlets: list[OutletHealth]
