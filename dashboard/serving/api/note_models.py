"""What the routes of notes at steps answer, as types; see `models`."""

from __future__ import annotations

from pydantic import BaseModel, Field

from .models import Answer


class NoteRow(BaseModel):
    """What a person has written at a step."""

    id: str
    step: int
    text: str
    time: float = Field(description="when it was written first; UNIX seconds")


class NoteList(Answer):
    """Notes at steps of a run, by step."""

    run: str
    notes: list[NoteRow]


class NoteAnswer(Answer):
    """A note that is kept."""

    run: str
    note: NoteRow


class NoteRemoved(Answer):
    """A note that is gone."""

    run: str
    id: str
