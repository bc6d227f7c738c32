"""What the routes share: the store, the trainers' desk, the spool; and how a run or a rank is looked up."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final, TypeAlias

from fastapi import APIRouter, HTTPException, Query
from fastapi import Path as PathParameter

from probe.delivery.spool_care import is_starred

from ...ingest.control_desk import ControlDesk
from ...ingest.run_removal import spool_folder
from ...store.protocol import RankSummary, RunSummary, StepRange, Store
from .tags import TaggedRoute

API: Final = "/api/v1"
MAX_STEP: Final = 2**53
RunId: TypeAlias = Annotated[str, PathParameter(min_length=1, max_length=64, description="id of a run")]
Rank: TypeAlias = Annotated[int, Query(ge=0, le=2**31, description="number of a rank")]
AnyRank: TypeAlias = Annotated[
    int | None, Query(ge=0, le=2**31, description="number of a rank; left out: all of them")
]
FirstStep: TypeAlias = Annotated[int | None, Query(ge=0, le=MAX_STEP, description="first step, 0-based")]
EndStep: TypeAlias = Annotated[int | None, Query(ge=0, le=MAX_STEP, description="one past the last step")]
Limit: TypeAlias = Annotated[int, Query(ge=1, le=1000, description="most entries of one answer")]


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiContext:
    """What the routes work on."""

    store: Store
    desk: ControlDesk
    spool: Path | None
    """Where journals of runs lie; None where there are none."""
    changed: Callable[[], None]
    """Called after something that pages show was changed."""

    def require_run(self, run: str) -> RunSummary:
        """Return a run of the store.

        Raises:
            HTTPException: 404, there is none of that id.
        """
        for summary in self.store.runs():
            if summary.run == run:
                return summary
        raise HTTPException(404, f"no run is called {run!r}")

    def require_rank(self, run: str, rank: int) -> RankSummary:
        """Return a rank of a run.

        Raises:
            HTTPException: 404, there is no such run, or it has no such rank.
        """
        ranks = self.require_run(run).ranks
        for one in ranks:
            if one.rank == rank:
                return one
        raise HTTPException(
            404, f"run {run!r} has no rank {rank}; it has {', '.join(str(one.rank) for one in ranks)}"
        )

    def newest_or(self, run: str | None) -> RunSummary:
        """Return a run, or the newest one where none is named.

        Raises:
            HTTPException: 404, it is not there, or none is.
        """
        if run is not None:
            return self.require_run(run)
        runs = self.store.runs()
        if not runs:
            raise HTTPException(404, "no run has been recorded yet; start a training with probe.watch")
        return runs[0]

    def is_starred(self, run: str) -> bool:
        """Whether a run is kept: by its mark in the store, or by the file `starred` in its folder."""
        folder = spool_folder(self.spool, run)
        mark = self.store.marks().get(run)
        return (mark is not None and mark.starred) or (folder is not None and is_starred(folder))


def make_router(tag: str) -> APIRouter:
    """Return a router whose GET answers carry an ETag."""
    return APIRouter(prefix=API, tags=[tag], route_class=TaggedRoute)


def steps_between(first: int | None, end: int | None) -> StepRange:
    """Return a range of steps.

    Raises:
        HTTPException: 422, it ends before it begins.
    """
    if first is not None and end is not None and end < first:
        raise HTTPException(422, f"end={end} lies before first={first}; end is one past the last step")
    return StepRange(first=first, end=end)


def fields_of(record: Any) -> dict[str, Any]:
    """Return the fields of a slotted dataclass."""
    return {name: getattr(record, name) for name in record.__dataclass_fields__}
