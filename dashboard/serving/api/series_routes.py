"""Numbers over steps: series, heatmaps, histograms."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

import msgspec
from fastapi import APIRouter, HTTPException, Query, Response
from pydantic import Field

from probe.wire.magnitude_bins import BIN_EDGES

from ...export.json import heatmap_cells, series_columns, series_facts
from ...export.table import arrow_stream, series_table, write_table
from ...page.views.heatmap_statistics import DEFAULT_STATISTIC
from .context import ApiContext, EndStep, FirstStep, Rank, RunId, fields_of, make_router, steps_between
from .models import HeatmapAnswer, HistogramList, SeriesNames, SeriesValues, StatisticNames, SubjectList

Name = Annotated[str, Field(min_length=1, max_length=512)]
Names = Annotated[list[Name], Query(min_length=1, max_length=64, description="names of series")]
Points = Annotated[int, Query(ge=1, le=10_000, description="most points of a series")]
Columns = Annotated[int, Query(ge=1, le=2000, description="most columns")]
Subject = Annotated[str, Query(max_length=4096, description="a parameter's, layer's or module's name")]
_ARROW: Final = "application/vnd.apache.arrow.stream"
_FILES: Final[dict[int | str, dict[str, Any]]] = {
    200: {
        "content": {
            "text/csv": {"schema": {"type": "string"}},
            _ARROW: {"schema": {"type": "string", "format": "binary"}},
        }
    },
    501: {"description": "Arrow was asked for, and pyarrow is not installed"},
}


def series_routes(context: ApiContext) -> APIRouter:
    """Return the routes of what is measured over steps."""
    router = make_router("series")
    _add_series(router, context)
    _add_heatmap(router, context)
    _add_histograms(router, context)
    return router


def _add_series(router: APIRouter, context: ApiContext) -> None:
    @router.get("/runs/{run}/series", summary="Names of the series that have one number per step")
    def names(run: RunId, rank: Rank = 0) -> SeriesNames:
        context.require_rank(run, rank)
        series = [{"name": name, **series_facts(name)} for name in context.store.scalar_names(run, rank)]
        return SeriesNames.model_validate({"run": run, "rank": rank, "series": series})

    @router.get(
        "/runs/{run}/series/values",
        summary="Values of series over a range of steps, pooled to a number of points",
        response_model=SeriesValues,
        responses=_FILES,
    )
    def values(
        run: RunId,
        name: Names,
        rank: Rank = 0,
        first: FirstStep = None,
        end: EndStep = None,
        points: Points = 1000,
        format: Literal["json", "csv", "arrow"] = "json",
    ) -> Response:
        context.require_rank(run, rank)
        found = context.store.scalars(run, rank, name, steps_between(first, end), points)
        if format != "json":
            return _file(series_table(run, rank, found), format)
        series = {str(one): series_columns(str(one), rows) for one, rows in found.groupby("name")}
        return json_answer({"v": 1, "run": run, "rank": rank, "series": series})


def _add_heatmap(router: APIRouter, context: ApiContext) -> None:
    @router.get("/runs/{run}/statistics", summary="Names of the statistics that a heatmap can show")
    def statistics(run: RunId, rank: Rank = 0) -> StatisticNames:
        context.require_rank(run, rank)
        return StatisticNames(run=run, rank=rank, statistics=context.store.statistic_names(run, rank))

    @router.get(
        "/runs/{run}/heatmap",
        summary="One statistic of all layers or modules over steps",
        response_model=HeatmapAnswer,
    )
    def heatmap(
        run: RunId,
        rank: Rank = 0,
        statistic: Annotated[str, Query(max_length=64)] = DEFAULT_STATISTIC,
        first: FirstStep = None,
        end: EndStep = None,
        columns: Columns = 500,
    ) -> Response:
        context.require_rank(run, rank)
        known = context.store.statistic_names(run, rank)
        if statistic not in known:
            raise HTTPException(
                404, f"rank {rank} of run {run!r} has no statistic {statistic!r}; it has {', '.join(known)}"
            )
        found = context.store.heatmap(run, rank, statistic, steps_between(first, end), columns)
        if found is None:
            raise HTTPException(404, f"rank {rank} of run {run!r} has not described its model yet")
        facts = {"v": 1, "run": run, "rank": rank, "statistic": statistic}
        return json_answer({**facts, **heatmap_cells(found)})


def _add_histograms(router: APIRouter, context: ApiContext) -> None:
    @router.get("/runs/{run}/histograms", summary="The newest histograms of a parameter, layer or module")
    def histograms(
        run: RunId, subject: Subject, rank: Rank = 0, first: FirstStep = None, end: EndStep = None
    ) -> HistogramList:
        context.require_rank(run, rank)
        found = context.store.histograms(run, rank, subject, steps_between(first, end))
        rows = [{**fields_of(one), "counts": one.counts.tolist()} for one in found]
        facts = {"run": run, "rank": rank, "subject": subject, "edges": list(BIN_EDGES[:-1])}
        return HistogramList.model_validate({**facts, "histograms": rows})

    @router.get("/runs/{run}/histograms/subjects", summary="What histograms can be asked for")
    def subjects(run: RunId, rank: Rank = 0) -> SubjectList:
        context.require_rank(run, rank)
        return SubjectList(run=run, rank=rank, subjects=context.store.histogram_subjects(run, rank))


def json_answer(content: Any) -> Response:
    """Answer with what is too large to be checked again; its numbers are finite or named."""
    return Response(msgspec.json.encode(content), media_type="application/json")


def _file(table: Any, form: Literal["csv", "arrow"]) -> Response:
    if form == "csv":
        return Response(write_table(table, "csv"), media_type="text/csv; charset=utf-8")
    try:
        return Response(arrow_stream(table), media_type=_ARROW)
    except ImportError as error:
        raise HTTPException(
            501,
            "Arrow needs the package pyarrow where the dashboard runs (pip install pyarrow); csv does not",
        ) from error
