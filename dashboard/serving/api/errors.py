"""Turns every refusal and failure of a route into the one form of `error_form.py`."""

from __future__ import annotations

import logging
from http import HTTPStatus
from typing import Final

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse
from starlette.exceptions import HTTPException

from ...callers import ViewOnlyError
from ...errors import DashboardError, UnknownRunError
from ..error_form import error_json, error_page, wants_page

_log = logging.getLogger(__name__)
_MOST_PROBLEMS: Final = 8


def add_error_form(server: FastAPI) -> None:
    """Have errors answered in one form, those of the framework (404, 405, 422) too."""

    @server.exception_handler(HTTPException)
    async def refused(request: Request, error: HTTPException) -> Response:
        message = str(error.detail)
        if message == HTTPStatus(error.status_code).phrase:  # the framework's own: says nothing
            message = _sentence(error.status_code, request)
        if error.status_code == 404 and wants_page(request.headers.get("accept", "")):
            return HTMLResponse(error_page("Not found", message), 404)
        headers = dict(error.headers or {})
        return JSONResponse(error_json(error.status_code, message), error.status_code, headers=headers)

    @server.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> Response:
        return JSONResponse(error_json(422, _problems(error)), 422)

    @server.exception_handler(DashboardError)
    async def failed(request: Request, error: DashboardError) -> Response:
        status = (
            404 if isinstance(error, UnknownRunError) else 403 if isinstance(error, ViewOnlyError) else 503
        )
        return JSONResponse(error_json(status, str(error)), status)

    @server.exception_handler(Exception)
    async def broken(request: Request, error: Exception) -> Response:
        _log.error("nanscope: %s %s failed", request.method, request.url.path, exc_info=error)
        text = "the dashboard could not answer this; its log says why"
        return JSONResponse(error_json(500, text), 500)


def _sentence(status: int, request: Request) -> str:
    if status == 405:
        return f"{request.url.path} does not take {request.method}; the header Allow says what it takes"
    return f"there is nothing at {request.url.path}; GET /openapi.json lists the routes"


def _problems(error: RequestValidationError) -> str:
    """Name each value that is wrong, and what is allowed; what was sent is not repeated."""
    found = [f"{'.'.join(str(part) for part in one['loc'])}: {one['msg']}" for one in error.errors()]
    more = [f"and {len(found) - _MOST_PROBLEMS} more"] if len(found) > _MOST_PROBLEMS else []
    return "; ".join([*found[:_MOST_PROBLEMS], *more])
