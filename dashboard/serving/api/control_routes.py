"""`/api/v1/runs/{run}/control`: what a running training is asked for, and requests that change it.

One route takes every request as it is (`{"do": "resume"}`); those beside it take one each, typed. Handlers
run on worker threads and wait there for the trainers' answers.
"""

from __future__ import annotations

import json
from typing import Annotated, Any, Final, Literal

import msgspec
from fastapi import APIRouter, HTTPException, Query, Request
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field
from starlette.concurrency import run_in_threadpool

from probe.delivery.control.control_messages import (
    AddWatchpoint,
    AskState,
    ChangeFeatures,
    ChangeLevel,
    ChangeLimit,
    ChangePreset,
    Clear,
    KeepSnapshot,
    Pause,
    RemoveWatchpoint,
    Resume,
    TakeMemorySnapshot,
    WriteBundle,
    read_request,
)
from probe.delivery.control.control_messages import Request as TrainerRequest
from probe.delivery.control.grammar import MAX_LENGTH
from probe.delivery.control.rule_options import Action, WatchpointOptions
from probe.errors import WireError
from probe.settings.levels import (
    FEATURES,
    MAX_PERIOD,
    PRESETS,
    check_features,
    check_overhead_limit,
    check_preset,
)
from probe.wire import Severity

from ...ingest.control_desk import ControlDesk, NotAllowedError, TrainerAnswer, UnreachableError
from .context import AnyRank, ApiContext, RunId, make_router
from .control_schema import MAX_COOLDOWN, request_body
from .models import ControlAnswer

_CONTROL: Final = "/runs/{run}/control"
Name = Annotated[str, Field(min_length=1, max_length=200)]


def _whole(value: object) -> object:
    """JSON has one kind of number: 10.0 is a whole one."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


Whole = BeforeValidator(_whole)
Period = Annotated[int, Field(ge=0, le=MAX_PERIOD), Whole]


class _Body(BaseModel):
    """Base of what is posted: a field that is not known is a mistake."""

    model_config = ConfigDict(extra="forbid", strict=True)


class LevelBody(_Body):
    """A level."""

    level: Literal["off", "basic", "advanced", "extreme"]


class PresetBody(_Body):
    """A preset; null goes back to the level's own switches."""

    preset: Name | None = Field(json_schema_extra={"enum": [*PRESETS, None]})


class FeaturesBody(_Body):
    """Periods in steps; 0 never, null as level and preset have it."""

    features: Annotated[dict[Name, Period | None], Field(max_length=64)] = Field(
        json_schema_extra={"propertyNames": {"enum": [*FEATURES]}}
    )


class LimitBody(_Body):
    """The overhead limit as a fraction; 0 none, null the level's."""

    overhead_limit: Annotated[float, Field(ge=0, le=1)] | None


class WatchpointBody(_Body):
    """A watchpoint, see docs/rules.md."""

    condition: Annotated[str, Field(min_length=1, max_length=MAX_LENGTH)]
    action: Action = "event"
    name: Annotated[str, Field(max_length=200)] = ""
    severity: Severity | None = None
    once: bool = False
    cooldown_steps: Annotated[int, Field(ge=0, le=MAX_COOLDOWN), Whole] = 0


class ProfileBody(_Body):
    """How many of the next steps are profiled."""

    steps: Annotated[int, Field(ge=1, le=100), Whole] = 5


def control_routes(context: ApiContext) -> APIRouter:
    """Return the routes: 404 for an unknown run, 409 without a trainer of it, 422 for what is wrong."""
    router = make_router("control")

    @router.get(_CONTROL, summary="What a running training is asked for: level, limit, watchpoints, pause")
    def state(run: RunId, rank: AnyRank = None) -> ControlAnswer:
        return _ask(context, run, AskState(), rank)

    @router.post(
        _CONTROL,
        summary='Ask something of it, such as {"do": "resume"}',
        openapi_extra={"requestBody": request_body()},
    )
    async def change(run: RunId, request: Request, rank: AnyRank = None) -> ControlAnswer:
        body = await request.body()
        return await run_in_threadpool(_change, context, run, body, rank)

    _add_settings(router, context)
    _add_watchpoints(router, context)
    _add_actions(router, context)
    return router


def _add_settings(router: APIRouter, context: ApiContext) -> None:
    @router.post(f"{_CONTROL}/level", summary="Measure more or less, from the next step on")
    def level(run: RunId, body: LevelBody, rank: AnyRank = None) -> ControlAnswer:
        return _ask(context, run, ChangeLevel(level=body.level), rank)

    @router.post(f"{_CONTROL}/preset", summary="Take a preset's switches over those of the level")
    def preset(run: RunId, body: PresetBody, rank: AnyRank = None) -> ControlAnswer:
        return _ask(context, run, ChangePreset(preset=body.preset), rank)

    @router.post(f"{_CONTROL}/features", summary="Set single switches")
    def features(run: RunId, body: FeaturesBody, rank: AnyRank = None) -> ControlAnswer:
        return _ask(context, run, ChangeFeatures(features=body.features), rank)

    @router.post(f"{_CONTROL}/limit", summary="Set the overhead limit")
    def limit(run: RunId, body: LimitBody, rank: AnyRank = None) -> ControlAnswer:
        return _ask(context, run, ChangeLimit(overhead_limit=body.overhead_limit), rank)


def _add_watchpoints(router: APIRouter, context: ApiContext) -> None:
    @router.post(f"{_CONTROL}/watchpoints", summary="Watch a condition")
    def add(run: RunId, body: WatchpointBody, rank: AnyRank = None) -> ControlAnswer:
        return _ask(context, run, AddWatchpoint(**body.model_dump()), rank)

    @router.delete(f"{_CONTROL}/watchpoints", summary="Take out a watchpoint by its name")
    def remove(
        run: RunId, name: Annotated[str, Query(min_length=1, max_length=200)], rank: AnyRank = None
    ) -> ControlAnswer:
        return _ask(context, run, RemoveWatchpoint(name=name), rank)


def _add_actions(router: APIRouter, context: ApiContext) -> None:
    @router.post(f"{_CONTROL}/pause", summary="Pause the training before its next update")
    def pause(run: RunId, rank: AnyRank = None) -> ControlAnswer:
        return _ask(context, run, Pause(), rank)

    @router.post(f"{_CONTROL}/resume", summary="Let a paused training go on")
    def resume(run: RunId, rank: AnyRank = None) -> ControlAnswer:
        return _ask(context, run, Resume(), rank)

    @router.post(f"{_CONTROL}/bundle", summary="Write a bundle of the next step")
    def bundle(run: RunId, rank: AnyRank = None) -> ControlAnswer:
        return _ask(context, run, WriteBundle(), rank)

    @router.post(f"{_CONTROL}/snapshot", summary="Keep all numbers of the next step")
    def snapshot(run: RunId, rank: AnyRank = None) -> ControlAnswer:
        return _ask(context, run, KeepSnapshot(), rank)

    @router.post(f"{_CONTROL}/memory-snapshot", summary="Read memory now, and keep it")
    def memory_snapshot(run: RunId, rank: AnyRank = None) -> ControlAnswer:
        return _ask(context, run, TakeMemorySnapshot(), rank)

    @router.post(f"{_CONTROL}/clear", summary="Forget what was found so far")
    def clear(run: RunId, rank: AnyRank = None) -> ControlAnswer:
        return _ask(context, run, Clear(), rank)

    @router.post(f"{_CONTROL}/profile", summary="Profile the next steps")
    def profile(run: RunId, body: ProfileBody, rank: AnyRank = None) -> ControlAnswer:
        return _change(context, run, json.dumps({"do": "profile", "steps": body.steps}).encode(), rank)


def _change(context: ApiContext, run: str, body: bytes, rank: int | None) -> ControlAnswer:
    context.require_run(run)
    try:
        request = read_request(body)
    except WireError as error:
        raise HTTPException(422, str(error)) from error
    return _ask(context, run, request, rank)


def _ask(context: ApiContext, run: str, request: TrainerRequest, rank: int | None) -> ControlAnswer:
    context.require_run(run)
    try:
        check_request(request)
    except ValueError as error:
        raise HTTPException(422, str(error)) from error
    return ask_trainers(context.desk, run, request, rank=rank)


def check_request(request: TrainerRequest) -> None:
    """Refuse what no trainer would take, before anybody is asked.

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
    elif isinstance(request, ChangePreset):
        check_preset(request.preset)
    elif isinstance(request, ChangeFeatures):
        check_features({name: 0 if period is None else period for name, period in request.features.items()})
    elif isinstance(request, ChangeLimit):
        check_overhead_limit(request.overhead_limit)


def ask_trainers(desk: ControlDesk, run: str, request: TrainerRequest, *, rank: int | None) -> ControlAnswer:
    """Ask, and return the answers.

    Raises:
        HTTPException: 409, nobody is there to answer.
    """
    try:
        answers = desk.ask(run, request, source="api", rank=rank)
    except NotAllowedError as error:
        raise HTTPException(403, str(error)) from error
    except UnreachableError as error:
        raise HTTPException(409, str(error)) from error
    rows = [_answer_row(answer) for answer in answers]
    return ControlAnswer.model_validate({"run": run, "answers": rows})


def _answer_row(answer: TrainerAnswer) -> dict[str, Any]:
    found = answer.answer
    return {
        "rank": answer.rank,
        "incarnation": answer.incarnation,
        "problem": "the training does not answer" if found is None else found.problem,
        "state": None if found is None else msgspec.to_builtins(found.state),
    }
