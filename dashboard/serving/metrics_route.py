"""`GET /metrics`: the newest numbers of all runs, for Prometheus."""

from __future__ import annotations

from typing import Any, Final

from fastapi import FastAPI, Response

from ..outlets.exposition import CONTENT_TYPE, exposition
from ..outlets.families import FamilyReader

METRICS_PATH: Final = "/metrics"
_DESCRIBED: Final[dict[int | str, dict[str, Any]]] = {
    200: {"description": "Prometheus' text format", "content": {"text/plain": {"schema": {"type": "string"}}}}
}


def add_metrics_route(server: FastAPI, families: FamilyReader) -> None:
    """Add the route; like every other one it wants the token."""

    @server.get(
        METRICS_PATH,
        summary="The newest numbers of all runs, in Prometheus' text format",
        response_class=Response,
        responses=_DESCRIBED,
    )
    def metrics() -> Response:
        body = exposition(families.read()).encode("utf-8", "replace")
        return Response(body, headers={"content-type": CONTENT_TYPE})
