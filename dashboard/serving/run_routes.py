"""`/api/v1/runs`: which runs the store has, and their deletion. Behind the token and the Origin check."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Any, Final

import msgspec
from fastapi import FastAPI, HTTPException, Request
from starlette.concurrency import run_in_threadpool

from ..store.protocol import RunSummary, Store

PATH: Final = "/api/v1/runs"


class Removal(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is posted."""

    runs: Annotated[list[Annotated[str, msgspec.Meta(max_length=128)]], msgspec.Meta(max_length=4096)]


def add_run_routes(server: FastAPI, store: Store, changed: Callable[[], None]) -> None:
    """Add the routes.

    Args:
        server: Gets them.
        store: Where the runs are.
        changed: Called after runs were deleted.
    """

    @server.get(PATH, summary="The runs of the store, newest first")
    def runs() -> dict[str, Any]:
        return {"v": 1, "runs": run_rows(store)}

    @server.post(PATH + "/remove", summary='Delete runs for good: {"runs": ["id"]}')
    async def remove(request: Request) -> dict[str, Any]:
        try:
            wanted = msgspec.json.decode(await request.body(), type=Removal)
        except msgspec.MsgspecError as error:
            raise HTTPException(422, str(error)) from error
        refused = await run_in_threadpool(remove_runs, store, wanted.runs)
        changed()
        return {"v": 1, "refused": refused}


def run_rows(store: Store) -> list[dict[str, Any]]:
    """Return a line per run, newest first."""
    return [
        {
            "run": run.run,
            "name": run.name,
            "started": run.started,
            "written": max((rank.last_time or 0.0 for rank in run.ranks), default=0.0) or run.started,
            "state": _state(run),
            "group": getattr(run.start, "group", "") or run.run,
        }
        for run in store.runs()
    ]


def remove_runs(store: Store, wanted: Sequence[str]) -> dict[str, str]:
    """Delete runs; return those that stay, with the reason. What is not there is no failure."""
    states = {run.run: _state(run) for run in store.runs()}
    refused = {}
    for run in wanted:
        if states.get(run) == "running":
            refused[run] = "it is still written"
        else:
            store.remove_run(run)
    return refused


def _state(run: RunSummary) -> str:
    states = {rank.state for rank in run.ranks}
    return "running" if "running" in states else next(iter(sorted(states)), "silent")
