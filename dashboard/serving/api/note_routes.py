"""`/api/v1/runs/{run}/notes`: what people have written at steps of a run."""

from __future__ import annotations

import secrets
import threading
import time
from typing import Annotated, Final

from fastapi import APIRouter, HTTPException
from fastapi import Path as PathParameter
from pydantic import BaseModel, ConfigDict, Field

from ...store.protocol import StepNote
from .context import MAX_STEP, ApiContext, RunId, fields_of, make_router
from .control_routes import Whole
from .note_models import NoteAnswer, NoteList, NoteRemoved, NoteRow

MAX_TEXT: Final = 500
"""Characters; also in `assets/ns_86_notes.js`."""
MAX_NOTES: Final = 200
"""Of one run: all of them go to each open page."""
_NOTES: Final = "/runs/{run}/notes"
NoteId = Annotated[str, PathParameter(pattern=r"^[a-z0-9]{1,32}$", description="id of a note")]


class StepNoteBody(BaseModel):
    """A note at a step; a field that is not known is a mistake."""

    model_config = ConfigDict(extra="forbid", strict=True)

    step: Annotated[int, Field(ge=0, le=MAX_STEP), Whole]
    text: Annotated[str, Field(min_length=1, max_length=MAX_TEXT, pattern=r"\S")]


def note_routes(context: ApiContext) -> APIRouter:
    """Return the routes: 404 for an unknown run or note, 409 where a run has as many as it may."""
    router = make_router("runs")
    one_at_a_time = threading.Lock()
    """Two that write at once would both count one place."""

    @router.get(_NOTES, summary="What people have written at steps of a run, by step")
    def listed(run: RunId) -> NoteList:
        context.require_run(run)
        return NoteList(run=run, notes=[NoteRow(**fields_of(note)) for note in context.store.notes(run)])

    @router.post(_NOTES, summary='Write a note at a step: {"step": 400, "text": "lr halved"}')
    def add(run: RunId, body: StepNoteBody) -> NoteAnswer:
        with one_at_a_time:
            return _write(context, run, secrets.token_hex(8), body)

    @router.put(f"{_NOTES}/{{note}}", summary="Write a note in place of the one of that id, or put it back")
    def replace(run: RunId, note: NoteId, body: StepNoteBody) -> NoteAnswer:
        with one_at_a_time:
            return _write(context, run, note, body)

    @router.delete(f"{_NOTES}/{{note}}", summary="Delete a note")
    def remove(run: RunId, note: NoteId) -> NoteRemoved:
        context.require_run(run)
        if not context.store.remove_note(run, note):
            raise HTTPException(404, f"run {run!r} has no note {note!r}")
        context.changed()
        return NoteRemoved(run=run, id=note)

    return router


def _write(context: ApiContext, run: str, note: str, body: StepNoteBody) -> NoteAnswer:
    context.require_run(run)
    known = {one.id: one for one in context.store.notes(run)}
    if note not in known and len(known) >= MAX_NOTES:
        raise HTTPException(409, f"run {run!r} has {MAX_NOTES} notes, as many as a run may have")
    written = known[note].time if note in known else time.time()
    kept = StepNote(id=note, step=body.step, text=body.text.strip(), time=written)
    context.store.write_note(run, kept)
    context.changed()
    return NoteAnswer(run=run, note=NoteRow(**fields_of(kept)))
