"""`/api/v1/runs/{run}/control`: what a running training is asked for, and requests that change it.

Behind the token and the Origin check like everything else (`security.py`). Handlers run on worker threads and
wait there for the trainers' answers.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, TypeAlias

import msgspec
from fastapi import FastAPI, HTTPException, Query, Request
from starlette.concurrency import run_in_threadpool

from probe.delivery.control.control_messages import AddWatchpoint, AskState, read_request
from probe.delivery.control.control_messages import Request as TrainerRequest
from probe.delivery.control.rule_options import WatchpointOptions
from probe.errors import WireError

from ..ingest.control_desk import ControlDesk, TrainerAnswer, UnreachableError
from ..store.protocol import Store

PATH: Final = "/api/v1/runs/{run}/control"
Rank: TypeAlias = Annotated[int | None, Query(ge=0, le=2**31)]


def add_control_routes(server: FastAPI, store: Store, desk: ControlDesk) -> None:
    """Add the routes: 404 for a run that is not there, 409 without a trainer of it, 422 for what is wrong."""

    @server.get(PATH, summary="What a running training is asked for: level, limit, watchpoints, pause")
    def state(run: str, rank: Rank = None) -> dict[str, Any]:
        _require(store, run)
        return ask_trainers(desk, run, AskState(), rank=rank)

    @server.post(PATH, summary='Ask something of it, such as {"do": "resume"}')
    async def change(run: str, request: Request, rank: Rank = None) -> dict[str, Any]:
        body = await request.body()
        return await run_in_threadpool(_change, store, desk, run, body, rank)


def _change(store: Store, desk: ControlDesk, run: str, body: bytes, rank: int | None) -> dict[str, Any]:
    _require(store, run)
    try:
        request = read_request(body)
        check_request(request)
    except (WireError, ValueError) as error:
        raise HTTPException(422, str(error)) from error
    return ask_trainers(desk, run, request, rank=rank)


def check_request(request: TrainerRequest) -> None:
    """Refuse a watchpoint that no trainer would take, before anybody is asked.

    Raises:
        ValueError: says what is wrong, where, and what is allowed.
    """
    if isinstance(request, AddWatchpoint):
        WatchpointOptions(
            condition=request.condition,
            action=request.action,
            name=request.name,
            severity=request.severity,
            once=request.once,
            cooldown_steps=request.cooldown_steps,
        )


def ask_trainers(desk: ControlDesk, run: str, request: TrainerRequest, *, rank: int | None) -> dict[str, Any]:
    """Ask, and return the answers as JSON.

    Raises:
        HTTPException: 409, nobody is there to answer.
    """
    try:
        answers = desk.ask(run, request, source="api", rank=rank)
    except UnreachableError as error:
        raise HTTPException(409, str(error)) from error
    return {"v": 1, "run": run, "answers": [_answer_json(answer) for answer in answers]}


def _answer_json(answer: TrainerAnswer) -> dict[str, Any]:
    found = answer.answer
    return {
        "rank": answer.rank,
        "incarnation": answer.incarnation,
        "problem": "the training does not answer" if found is None else found.problem,
        "state": None if found is None else msgspec.to_builtins(found.state),
    }


def _require(store: Store, run: str) -> None:
    if all(summary.run != run for summary in store.runs()):
        raise HTTPException(404, f"no run is called {run!r}")
