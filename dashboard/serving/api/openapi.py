"""Completes the description of the routes at /openapi.json: who may call, and every refusal."""

from __future__ import annotations

from typing import Any, Final

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from probe import __version__

from ..metrics_route import METRICS_PATH
from ..running import TOKEN_HEADER
from .models import ErrorAnswer

_ERROR: Final = "#/components/schemas/ErrorAnswer"
_DESCRIPTION: Final = (
    "What a dashboard knows of trainings, and requests to running ones. Every route wants the dashboard's "
    "token, as `Authorization: Bearer` or as the header `x-nanscope-token`, or a session in the page's "
    "cookie; what changes something wants a bearer token, or the page's own Origin, and no view token."
)
_REFUSALS: Final = {
    "400": "a body that is no JSON",
    "401": "no token, or a wrong one",
    "403": "another site's Origin, or a change with no bearer token and no own Origin, or with a view token",
    "404": "no such run, rank or thing",
    "413": "a body of more than 1 MiB",
    "421": "a Host that is not the dashboard's",
    "422": "a value that is not allowed; says which and why",
    "429": "too many wrong tokens; the header Retry-After says for how long",
    "500": "a failure; the dashboard's log says why",
    "503": "the store cannot answer; says why",
}


def describe_routes(server: FastAPI, cookie: str) -> None:
    """Have the server describe its routes completely; call it after the last route was added."""

    def description() -> dict[str, Any]:
        if server.openapi_schema is None:
            plain = get_openapi(
                title="nanscope", version=__version__, description=_DESCRIPTION, routes=server.routes
            )
            server.openapi_schema = completed(plain, cookie)
        return server.openapi_schema

    server.__dict__["openapi"] = description


def completed(document: dict[str, Any], cookie: str) -> dict[str, Any]:
    """Add the ways to show the token, and to each route its refusals; 304 to what has an ETag."""
    components = document.setdefault("components", {})
    schemas = components.setdefault("schemas", {})
    error = ErrorAnswer.model_json_schema(ref_template="#/components/schemas/{model}")
    schemas.update(error.pop("$defs"))
    schemas["ErrorAnswer"] = error
    for unused in ("HTTPValidationError", "ValidationError"):
        schemas.pop(unused, None)
    components["securitySchemes"] = {
        "bearer": {"type": "http", "scheme": "bearer"},
        "header": {"type": "apiKey", "in": "header", "name": TOKEN_HEADER},
        "cookie": {"type": "apiKey", "in": "cookie", "name": cookie},
    }
    document["security"] = [{name: []} for name in components["securitySchemes"]]
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            _complete(operation, path, method)
    return document


def _complete(operation: dict[str, Any], path: str, method: str) -> None:
    responses = operation["responses"]
    refusals = dict(_REFUSALS)
    if method != "get" or path.endswith("/control"):
        refusals["409"] = (
            "no training of the run is connected, the run is still written, or it has all notes it may"
        )
    if method != "get":
        refusals["415"] = "a body, or a change with the page's cookie, that is not application/json"
    for status, text in refusals.items():
        responses[status] = {"description": text, "content": _content()}
    if "501" in responses:
        responses["501"]["content"] = _content()
    if method == "get" and path not in ("/health", METRICS_PATH):
        responses["304"] = {"description": "`If-None-Match` names what the answer would be"}


def _content() -> dict[str, Any]:
    return {"application/json": {"schema": {"$ref": _ERROR}}}
