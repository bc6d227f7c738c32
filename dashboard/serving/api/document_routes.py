"""What was measured as a whole (snapshots, profiles, regions), summaries, and the report of a run."""

from __future__ import annotations

from typing import Annotated, Any, Final

import msgspec
import numpy as np
from fastapi import APIRouter, Query, Response
from fastapi import Path as PathParameter

from probe.wire.event_json import event_json, jsonable
from probe.wire.run_summary import RunCounts

from ...page.views.event_facts import event_order
from ...store.protocol import StoredDocument
from .context import AnyRank, ApiContext, Limit, Rank, RunId, make_router
from .models import DocumentKinds, DocumentList, ReportAnswer, RunSummaryAnswer
from .run_routes import run_detail
from .series_routes import json_answer
from .summaries import count_rank

Kind = Annotated[str, PathParameter(pattern="^[a-z_]{1,64}$", description="kind of documents")]
Key = Annotated[str | None, Query(max_length=512, description="only the document with this key")]
SNAPSHOT: Final = "memory_snapshot"
_REPORT_EVENTS: Final = 1000
_REPORT_DOCUMENTS: Final = 200
_REPORT_POINTS: Final = 1000


def document_routes(context: ApiContext) -> APIRouter:
    """Return the routes of documents, summary and report."""
    router = make_router("documents")

    @router.get("/runs/{run}/documents", summary="Kinds of documents that the run has")
    def kinds(run: RunId) -> DocumentKinds:
        context.require_run(run)
        store = context.store
        found = {kind: len(store.documents(run, kind)) for kind in store.document_kinds(run)}
        return DocumentKinds(run=run, kinds=found)

    @router.get(
        "/runs/{run}/documents/{kind}", summary="Documents of a kind, by time", response_model=DocumentList
    )
    def documents(
        run: RunId, kind: Kind, rank: AnyRank = None, key: Key = None, limit: Limit = 100
    ) -> Response:
        return _documents(context, run, kind, rank=rank, key=key, limit=limit)

    @router.get("/runs/{run}/snapshots", summary="Memory snapshots, by time", response_model=DocumentList)
    def snapshots(run: RunId, rank: AnyRank = None, key: Key = None, limit: Limit = 100) -> Response:
        return _documents(context, run, SNAPSHOT, rank=rank, key=key, limit=limit)

    @router.get("/runs/{run}/summary", summary="Counts and rates of one rank")
    def summary(run: RunId, rank: Rank = 0) -> RunSummaryAnswer:
        return RunSummaryAnswer.model_validate(_summary(context, run, rank))

    @router.get(
        "/runs/{run}/report",
        summary="What the run is, and what was counted, found and measured",
        response_model=ReportAnswer,
    )
    def report(run: RunId, rank: Rank = 0) -> Response:
        return json_answer(_report(context, run, rank))

    return router


def document_row(stored: StoredDocument) -> dict[str, Any]:
    """Return a document as JSON; its body is what was written, decoded, as data only."""
    document = stored.document
    try:
        body = msgspec.json.decode(document.body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        body = None
    return {
        "kind": document.kind,
        "key": document.key,
        "rank": stored.rank,
        "incarnation": stored.incarnation,
        "step": document.step,
        "time": jsonable(document.time),
        "body": body,
    }


def _documents(
    context: ApiContext, run: str, kind: str, *, rank: int | None, key: str | None, limit: int
) -> Response:
    context.require_run(run)
    found = [
        one for one in context.store.documents(run, kind, rank) if key is None or one.document.key == key
    ]
    shown = found[max(0, len(found) - limit) :]
    facts = {"v": 1, "run": run, "kind": kind, "left_out": len(found) - len(shown)}
    return json_answer({**facts, "documents": [document_row(one) for one in shown]})


def _summary(context: ApiContext, run: str, rank: int, *, is_whole: bool = False) -> dict[str, Any]:
    state = context.require_rank(run, rank)
    counts = count_rank(context.store.events(run, rank), state, is_whole=is_whole)
    return {"v": 1, "run": run, "rank": rank, **counts.training(), **_more(counts)}


def _more(counts: RunCounts) -> dict[str, Any]:
    names = ("total_anomalies", "events", "steps_by_kind", "events_by_kind", "events_by_severity")
    return {name: getattr(counts, name) for name in names}


def _report(context: ApiContext, run: str, rank: int) -> dict[str, Any]:
    summary = _summary(context, run, rank, is_whole=True)
    store = context.store
    events = sorted(store.events(run, rank), key=event_order)[-_REPORT_EVENTS:]
    kinds = {
        kind: store.documents(run, kind, rank)[-_REPORT_DOCUMENTS:] for kind in store.document_kinds(run)
    }
    return {
        "v": 1,
        "run": run_detail(context, context.require_run(run)),
        "rank": rank,
        "summary": summary,
        "series": _series_facts(context, run, rank),
        "events": [event_json(event) for event in events],
        "documents": {kind: [document_row(one) for one in found] for kind, found in kinds.items() if found},
    }


@np.errstate(over="ignore", invalid="ignore")  # what no float64 holds is Inf
def _series_facts(context: ApiContext, run: str, rank: int) -> dict[str, dict[str, Any]]:
    """First and last mean, and the extremes, of every series; over its finite values."""
    names = context.store.scalar_names(run, rank)[:1000]
    values = context.store.scalars(run, rank, names, max_points=_REPORT_POINTS)
    facts: dict[str, dict[str, Any]] = {}
    for name, rows in values.groupby("name"):
        finite = rows[rows["mean"].notna()]
        if len(finite):
            steps = (finite["pooled"] - finite["nan"] - finite["inf"]).clip(lower=1)
            numbers = {
                "first": finite["mean"].iloc[0],
                "last": finite["mean"].iloc[-1],
                "min": finite["min"].min(),
                "mean": (finite["mean"] * steps).sum() / steps.sum(),
                "max": finite["max"].max(),
            }
            facts[str(name)] = {key: jsonable(float(number)) for key, number in numbers.items()}
    return facts
