"""The four routes under `/training-logs/debug`, by the names that users of older systems look for.

They are about the newest run, or the one of `?run=`; numbers are those of its lowest rank.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

from fastapi import APIRouter, Query
from fastapi import Path as PathParameter

from probe.delivery.control.control_messages import ChangeLevel, Clear

from .context import ApiContext
from .control_routes import ask_trainers
from .models import ControlAnswer, DebugSummary, TrainingSummary
from .summaries import count_rank, debug_summary
from .tags import TaggedRoute

PREFIX: Final = "/training-logs/debug"
ChosenRun = Annotated[
    str | None, Query(min_length=1, max_length=64, description="id of a run; left out: the newest one")
]
ChosenLevel = Annotated[Literal["off", "basic", "advanced", "extreme"], PathParameter()]


def training_log_routes(context: ApiContext) -> APIRouter:
    """Return the routes."""
    router = APIRouter(prefix=PREFIX, tags=["training logs"], route_class=TaggedRoute)

    @router.get("/summary", summary="What was found, by what it is about")
    def summary(run: ChosenRun = None) -> DebugSummary:
        chosen = context.newest_or(run)
        rank = chosen.ranks[0]
        found = debug_summary(context.store.events(chosen.run, rank.rank), rank)
        return DebugSummary.model_validate(found)

    @router.get("/training/summary", summary="Steps, anomalies and their rates")
    def training(run: ChosenRun = None) -> TrainingSummary:
        chosen = context.newest_or(run)
        rank = chosen.ranks[0]
        counts = count_rank(context.store.events(chosen.run, rank.rank), rank)
        return TrainingSummary.model_validate(counts.training())

    @router.post("/level/{level}", summary="Measure more or less, in the running training; takes no body")
    def level(level: ChosenLevel, run: ChosenRun = None) -> ControlAnswer:
        chosen = context.newest_or(run)
        return ask_trainers(context.desk, chosen.run, ChangeLevel(level=level), rank=None)

    @router.post("/clear", summary="Have the running training forget what was found; takes no body")
    def clear(run: ChosenRun = None) -> ControlAnswer:
        chosen = context.newest_or(run)
        return ask_trainers(context.desk, chosen.run, Clear(), rank=None)

    return router
