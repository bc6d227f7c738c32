"""Takes the place of routes that Dash adds and that answer with a 500 what is the caller's mistake.

A malformed callback is 400 or 422, a wrong path of a component is 404. Dash's own WebSocket, which nothing on
the page uses, is taken out. Values are judged by the callbacks themselves; here is judged what Dash needs to
call one: its outputs, and an element with the right id and property for each input and state.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, Final, NoReturn, TypeAlias

import msgspec
from anyio import CapacityLimiter, to_thread
from dash import Dash
from dash.exceptions import DependencyException
from fastapi import FastAPI, HTTPException, Request, Response

from ..errors import DashboardError

CALLBACK_PATH: Final = "/_dash-update-component"
COMPONENT_PATH: Final = "/_dash-component-suites/{package_name}/{fingerprinted_path:path}"
SOCKET_PATH: Final = "/_dash-ws-callback"
_ALL: Final = ["ALL"]
_log = logging.getLogger(__name__)

MOST_CALLBACKS: Final = 16
"""That run at once, on threads of their own: those of the API's routes stay free."""

Endpoint: TypeAlias = Callable[..., Coroutine[Any, Any, Response]]


class _Element(msgspec.Struct, frozen=True, kw_only=True):
    """A property of an element of the page."""

    id: str | dict[str, Any]
    property: str
    value: Any = None


class _Call(msgspec.Struct, frozen=True, kw_only=True):
    """What Dash's renderer posts; it leaves out the state of a callback that has none."""

    output: str
    outputs: _Element | list[_Element]
    inputs: list[_Element | list[_Element]]
    state: list[_Element | list[_Element]] = []
    changed: list[str] = msgspec.field(name="changedPropIds", default=[])


class BadCallError(ValueError):
    """A posted callback that is none of this page's; the message says what is wrong."""


def log_failed_callback(error: Exception) -> NoReturn:
    """Have a failed callback logged, and answered in the form of all errors; called by Dash.

    Raises:
        DashboardError: as it came, for its own status.
        HTTPException: 500 for everything else.
    """
    if isinstance(error, DashboardError):
        raise error
    _log.error("nanscope: a callback of the page failed", exc_info=error)
    raise HTTPException(500, "the dashboard could not answer this; its log says why") from error


def mend_routes(app: Dash, server: FastAPI) -> None:
    """Replace Dash's routes of callbacks and components, and take its socket out; called once."""
    callbacks = _take_out(server, CALLBACK_PATH)
    components = _take_out(server, COMPONENT_PATH)
    _take_out(server, SOCKET_PATH)
    # Else the page's renderer opens it again and again.
    app.backend.websocket_capability = False

    room = CapacityLimiter(MOST_CALLBACKS)

    async def call(request: Request) -> Response:
        try:
            # Dash's middleware has read the body; it leaves None of what is no JSON.
            check_call(request.state.json_body, app.callback_map)
        except BadCallError as error:
            status = 400 if request.state.json_body is None else 422
            raise HTTPException(status, str(error)) from error
        try:
            # Dash would call it on the loop of all pages and routes. It may wait seconds, for a training say.
            return await to_thread.run_sync(_finish, callbacks, request, limiter=room)
        except RecursionError as error:
            raise HTTPException(422, "a value of the callback is nested too deeply") from error

    async def component(request: Request, package_name: str, fingerprinted_path: str) -> Response:
        try:
            return await components(request, package_name, fingerprinted_path)
        except (DependencyException, OSError) as error:
            raise HTTPException(404, "no component of the page has such a file") from error

    server.add_api_route(CALLBACK_PATH, call, methods=["POST"], include_in_schema=False)
    server.add_api_route(COMPONENT_PATH, component, methods=["GET"], include_in_schema=False)


def _finish(endpoint: Endpoint, request: Request) -> Response:
    """Run an endpoint whose coroutine is one in form alone: no callback of the page awaits anything."""
    called = endpoint(request)
    try:
        called.send(None)
    except StopIteration as done:
        answer: Response = done.value
        return answer
    called.close()
    raise RuntimeError("a callback of the page is asynchronous: it would have to run on the loop")


def _take_out(server: FastAPI, path: str) -> Endpoint:
    (route,) = [route for route in server.router.routes if getattr(route, "path", None) == path]
    server.router.routes.remove(route)
    endpoint: Endpoint = route.endpoint  # type: ignore[attr-defined]
    return endpoint


def check_call(body: Any, callbacks: Mapping[str, Mapping[str, Any]]) -> None:
    """Check that a body calls one of the callbacks, with all that Dash needs for it.

    Args:
        body: What was posted, decoded.
        callbacks: `Dash.callback_map`.

    Raises:
        BadCallError: it does not.
    """
    if body is None:
        raise BadCallError("a callback is posted as a JSON object")
    try:
        call = msgspec.convert(body, _Call)
    except (msgspec.ValidationError, RecursionError) as error:
        raise BadCallError(f"this is not a callback: {error}") from error
    declared = callbacks.get(call.output)
    if declared is None or "callback" not in declared:
        raise BadCallError("the page has no callback with this output")
    _check_outputs(call.outputs, declared["output"])
    _check_elements("inputs", call.inputs, declared["inputs"])
    _check_elements("state", call.state, declared["state"])
    known = [(one["id"], one["property"]) for one in declared["inputs"]]
    if not all(any(_is_of(name, *one) for one in known) for name in call.changed):
        raise BadCallError("changedPropIds: names something that is not an input of the callback")


def _check_outputs(given: _Element | list[_Element], declared: Any) -> None:
    wanted = declared if isinstance(declared, list | tuple) else [declared]
    found = given if isinstance(given, list) else [given]
    pairs = [(one.component_id, one.component_property) for one in wanted]
    if isinstance(given, list) is not isinstance(declared, list | tuple) or pairs != [
        (one.id, one.property.partition("@")[0]) for one in found
    ]:
        raise BadCallError("outputs: not those of the callback")


def _check_elements(
    what: str, given: Sequence[_Element | list[_Element]], declared: Sequence[Mapping[str, Any]]
) -> None:
    if len(given) != len(declared) or not all(map(_fits, given, declared)):
        raise BadCallError(f"{what}: not those of the callback")


def _fits(given: _Element | list[_Element], declared: Mapping[str, Any]) -> bool:
    """Whether it is the element that was declared, or, of a pattern, a list of elements that match it."""
    pattern = _pattern(declared["id"])
    if pattern is None:
        return isinstance(given, _Element) and (given.id, given.property) == (
            declared["id"],
            declared["property"],
        )
    return isinstance(given, list) and all(
        one.property == declared["property"] and _matches(one.id, pattern) for one in given
    )


def _is_of(name: str, declared_id: str, declared_property: str) -> bool:
    """Whether ``ID.PROPERTY`` names an input; of a pattern any element that matches it."""
    id_, _, property_ = name.rpartition(".")
    pattern = _pattern(declared_id)
    if property_ != declared_property or pattern is None:
        return (id_, property_) == (declared_id, declared_property)
    try:
        return _matches(json.loads(id_), pattern)
    except (ValueError, RecursionError):
        return False


def _pattern(declared_id: str) -> dict[str, Any] | None:
    """The ids that an input of several elements matches: ``["ALL"]`` stands for any; None for one element."""
    if not declared_id.startswith("{"):
        return None
    try:
        pattern: dict[str, Any] = json.loads(declared_id)
    except (ValueError, RecursionError):
        return None
    return pattern


def _matches(id_: Any, pattern: Mapping[str, Any]) -> bool:
    return (
        isinstance(id_, dict)
        and id_.keys() == pattern.keys()
        and all(
            isinstance(id_[key], str | int | float) if wanted == _ALL else id_[key] == wanted
            for key, wanted in pattern.items()
        )
    )
