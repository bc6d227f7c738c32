"""A run as one file: `/api/v1/runs/{run}/export`, and `/export/...` for the page's menu."""

from __future__ import annotations

import re
from typing import Annotated, Any, Final, Literal, TypeAlias

import msgspec
from fastapi import APIRouter, HTTPException, Query, Response
from pydantic import BaseModel

from probe.wire.event_json import event_json

from ...errors import UnknownTrackError
from ...export.html import PageTheme, export_html
from ...export.json import export_json
from ...export.table import export_table
from ...export.tracks import MAX_NAME, tracks_of
from ...page.views.heatmap_statistics import DEFAULT_STATISTIC
from ...store.protocol import StepRange
from .context import ApiContext, EndStep, FirstStep, Rank, RunId, make_router, steps_between
from .models import Answer
from .tags import TaggedRoute

Form: TypeAlias = Literal["html", "json", "csv", "parquet"]
Statistic = Annotated[str, Query(max_length=64, description="what the heatmap shows")]
TrackId = Annotated[
    str | None,
    Query(min_length=1, max_length=MAX_NAME, description="this track alone; GET /runs/RUN/tracks lists them"),
]
QueryRun = Annotated[str, Query(min_length=1, max_length=64, description="id of a run")]
_MEDIA: Final[dict[Form, str]] = {
    "html": "text/html; charset=utf-8",
    "json": "application/json",
    "csv": "text/csv; charset=utf-8",
    "parquet": "application/vnd.apache.parquet",
}


class TrackRow(BaseModel):
    """A track, and the series that it shows."""

    id: str
    title: str
    series: list[str]


class TrackList(Answer):
    """The tracks of a rank."""

    run: str
    rank: int
    tracks: list[TrackRow]


def _described(*forms: Form) -> dict[int | str, dict[str, Any]]:
    content: dict[str, Any] = {
        _MEDIA[form].partition(";")[0]: {
            "schema": {"type": "object"} if form == "json" else {"type": "string"}
        }
        for form in forms
    }
    return {200: {"description": "the file, as a download", "content": content}}


def export_routes(context: ApiContext) -> APIRouter:
    """Return the versioned route."""
    router = make_router("export")

    @router.get("/runs/{run}/tracks", summary="What can be exported alone: charts, heatmap, logged values")
    def tracks(run: RunId, rank: Rank = 0) -> TrackList:
        context.require_rank(run, rank)
        found = tracks_of(
            context.store.scalar_names(run, rank), has_heatmap=context.store.layout(run, rank) is not None
        )
        rows = [TrackRow(id=one.id, title=one.title, series=list(one.series)) for one in found]
        return TrackList(run=run, rank=rank, tracks=rows)

    @router.get(
        "/runs/{run}/export",
        summary="One rank of a run, or one track of it, as one file",
        response_class=Response,
        responses=_described("html", "json", "csv", "parquet"),
    )
    def export(
        run: RunId,
        format: Form = "json",
        rank: Rank = 0,
        first: FirstStep = None,
        end: EndStep = None,
        theme: PageTheme = "system",
        heatmap: Statistic = DEFAULT_STATISTIC,
        track: TrackId = None,
    ) -> Response:
        steps = steps_between(first, end)
        return _exported(
            context, run, format, rank=rank, steps=steps, theme=theme, statistic=heatmap, track=track
        )

    return router


def page_export_routes(context: ApiContext) -> APIRouter:
    """Return the routes of the page's menu."""
    router = APIRouter(prefix="/export", tags=["export"], route_class=TaggedRoute)

    @router.get(
        "/html",
        summary="One self-contained HTML file of a run",
        response_class=Response,
        responses=_described("html"),
    )
    def html(
        run: QueryRun,
        rank: Rank = 0,
        first: FirstStep = None,
        end: EndStep = None,
        theme: PageTheme = "dark",
        heatmap: Statistic = DEFAULT_STATISTIC,
    ) -> Response:
        steps = steps_between(first, end)
        return _exported(context, run, "html", rank=rank, steps=steps, theme=theme, statistic=heatmap)

    @router.get(
        "/json",
        summary="A run's events, series and heatmap as JSON",
        response_class=Response,
        responses=_described("json"),
    )
    def json(
        run: QueryRun,
        rank: Rank = 0,
        first: FirstStep = None,
        end: EndStep = None,
        heatmap: Statistic = DEFAULT_STATISTIC,
    ) -> Response:
        steps = steps_between(first, end)
        return _exported(context, run, "json", rank=rank, steps=steps, theme="dark", statistic=heatmap)

    @router.get("/event", summary="One event as JSON", response_class=Response, responses=_described("json"))
    def event(run: QueryRun, event: Annotated[str, Query(max_length=64)]) -> Response:
        found = context.store.event(run, event)
        if found is None:
            raise HTTPException(404, f"run {run!r} has no event {event!r}")
        return download(msgspec.json.encode(event_json(found)), name=f"{run}-{event}", form="json")

    return router


def _exported(
    context: ApiContext,
    run: str,
    form: Form,
    *,
    rank: int,
    steps: StepRange,
    theme: PageTheme,
    statistic: str,
    track: str | None = None,
) -> Response:
    context.require_rank(run, rank)
    store = context.store
    try:
        if form == "html":
            text = export_html(
                store, run, rank=rank, steps=steps, theme=theme, statistic=statistic, track=track
            )
            body = text.encode()
        elif form == "json":
            document = export_json(store, run, rank=rank, steps=steps, statistic=statistic, track=track)
            body = msgspec.json.encode(document)
        else:
            body = export_table(store, run, form, rank=rank, steps=steps, statistic=statistic, track=track)
    except UnknownTrackError as error:
        raise HTTPException(422, str(error)) from error
    return download(body, name=run if track is None else f"{run}-{track[:64]}", form=form)


def download(body: bytes, *, name: str, form: Form) -> Response:
    """Answer with a file; nothing but letters, digits, dot, dash and underscore gets into its name."""
    plain = re.sub(r"[^A-Za-z0-9._-]", "_", name)
    headers = {"content-disposition": f'attachment; filename="nanscope-{plain}.{form}"'}
    return Response(body, media_type=_MEDIA[form], headers=headers)
