"""`/api/v1/runs`: which runs the store has, notes and stars, ranks, layers, delivery, and deletion."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Final

import msgspec
from fastapi import APIRouter, HTTPException, Query
from pydantic import BaseModel, ConfigDict, Field

from probe.wire.event_json import jsonable

from ...ingest.run_removal import remove_runs, run_row, star_run
from ...store.protocol import RankSummary, RunMark, RunSummary, Store
from .context import ApiContext, Limit, Rank, RunId, fields_of, make_router
from .models import Delivery, Layers, RankList, RunDetail, RunList, RunMarked, RunRemoved, RunsRemoved

_CURSOR: Final = r"^[0-9]{1,17}\.[A-Za-z0-9._-]{1,64}$"
Cursor = Annotated[str | None, Query(pattern=_CURSOR, max_length=96, description="`next_cursor` of a page")]
MAX_NOTE: Final = 4000


class _Body(BaseModel):
    """Base of what is posted: a field that is not known is a mistake."""

    model_config = ConfigDict(extra="forbid", strict=True)


class Removal(_Body):
    """Runs to delete."""

    runs: Annotated[list[Annotated[str, Field(max_length=128)]], Field(max_length=4096)]


class Note(_Body):
    """A note in place of the one before."""

    note: Annotated[str, Field(max_length=MAX_NOTE)]


def run_routes(context: ApiContext) -> APIRouter:
    """Return the routes of runs."""
    router = make_router("runs")

    @router.get("/runs", summary="The runs of the store, newest first")
    def runs(limit: Limit = 1000, cursor: Cursor = None) -> RunList:
        return RunList.model_validate(run_page(context.store, limit=limit, cursor=cursor))

    @router.post("/runs/remove", summary='Delete runs for good: {"runs": ["id"]}')
    def remove(wanted: Removal) -> RunsRemoved:
        refused = remove_runs(context.store, wanted.runs)
        context.changed()
        return RunsRemoved(refused=refused)

    @router.get("/runs/{run}", summary="One run")
    def one(run: RunId) -> RunDetail:
        return RunDetail.model_validate(run_detail(context, context.require_run(run)))

    @router.delete("/runs/{run}", summary="Delete a run from the store and from the server's spool")
    def delete(run: RunId) -> RunRemoved:
        context.require_run(run)
        refused = remove_runs(context.store, [run], spool=context.spool)
        if refused:
            raise HTTPException(409, f"run {run!r} stays: {refused[run]}")
        context.changed()
        return RunRemoved(run=run)

    _add_marks(router, context)
    _add_parts(router, context)
    return router


def _add_marks(router: APIRouter, context: ApiContext) -> None:
    @router.put("/runs/{run}/note", summary="Write a note on a run, in place of the one before")
    def write_note(run: RunId, body: Note) -> RunMarked:
        context.require_run(run)
        context.store.mark_run(run, note=body.note)
        context.changed()
        return _marked(context, run)

    @router.put("/runs/{run}/star", summary="Keep a run: the spool's cap passes it over")
    def star(run: RunId) -> RunMarked:
        return _starred(context, run, True)

    @router.delete("/runs/{run}/star", summary="Take the star off a run")
    def unstar(run: RunId) -> RunMarked:
        return _starred(context, run, False)


def _add_parts(router: APIRouter, context: ApiContext) -> None:
    @router.get("/runs/{run}/ranks", summary="Its ranks, each in its newest incarnation")
    def ranks(run: RunId) -> RankList:
        return RankList.model_validate({"run": run, "ranks": rank_rows(context.require_run(run).ranks)})

    @router.get("/runs/{run}/layers", summary="The model: layers, parameters, modules")
    def layers(run: RunId, rank: Rank = 0) -> Layers:
        context.require_rank(run, rank)
        layout = context.store.layout(run, rank)
        if layout is None:
            raise HTTPException(404, f"rank {rank} of run {run!r} has not described its model yet")
        fields = jsonable(layout)
        return Layers.model_validate({"run": run, "rank": rank, **fields})

    @router.get("/runs/{run}/delivery", summary="What has arrived, what is missing")
    def delivery(run: RunId) -> Delivery:
        recorded_as = context.require_run(run).recorded_as
        positions = [
            {"writer": one.key.writer, "stream": one.key.stream, **fields_of(one)}
            for one in context.store.positions(recorded_as)
        ]
        gaps = [fields_of(gap) for gap in context.store.gaps(run)]
        return Delivery.model_validate({"run": run, "positions": positions, "gaps": gaps})


def run_page(store: Store, *, limit: int, cursor: str | None = None) -> dict[str, Any]:
    """Return a page of runs, newest first, and where the next one begins."""
    after = None if cursor is None else _position_of(cursor)
    wanted = [run for run in store.runs() if after is None or _position(run) < after]
    shown = wanted[:limit]
    marks = store.marks()
    more = len(wanted) > len(shown)
    return {
        "v": 1,
        "runs": [msgspec.to_builtins(run_row(run, marks.get(run.run, RunMark()))) for run in shown],
        "next_cursor": "{}.{}".format(*_position(shown[-1])) if more else None,
    }


def run_detail(context: ApiContext, run: RunSummary) -> dict[str, Any]:
    """Return all that is known of a run as a whole."""
    mark = context.store.marks().get(run.run, RunMark())
    return {
        "v": 1,
        **msgspec.to_builtins(run_row(run, mark)),
        "starred": context.is_starred(run.run),
        "start": jsonable(run.start),
        "ranks": rank_rows(run.ranks),
        "event_counts": run.event_counts,
    }


def rank_rows(ranks: Sequence[RankSummary]) -> list[dict[str, Any]]:
    """Return a line a rank."""
    return [fields_of(rank) for rank in ranks]


def _starred(context: ApiContext, run: str, starred: bool) -> RunMarked:
    context.require_run(run)
    star_run(context.store, context.spool, run, starred=starred)
    context.changed()
    return _marked(context, run)


def _marked(context: ApiContext, run: str) -> RunMarked:
    mark = context.store.marks().get(run, RunMark())
    return RunMarked(run=run, note=mark.note, starred=context.is_starred(run))


def _position(run: RunSummary) -> tuple[int, str]:
    """The place in the list: microseconds and id, both descending."""
    return max(0, int(run.started * 1e6)), run.run


def _position_of(cursor: str) -> tuple[int, str]:
    started, _, run = cursor.partition(".")
    return int(started), run
