"""Adds every plain HTTP route beside the page: health, metrics, exports, the API, unknown paths."""

from __future__ import annotations

from fastapi import FastAPI

from ..outlets.families import FamilyReader
from .api.context import ApiContext, fields_of
from .api.control_routes import control_routes
from .api.document_routes import document_routes
from .api.errors import add_error_form
from .api.event_routes import event_routes
from .api.export_routes import export_routes, page_export_routes
from .api.health_models import Health, OutletHealth
from .api.note_routes import note_routes
from .api.openapi import describe_routes
from .api.run_routes import run_routes
from .api.series_routes import series_routes
from .api.training_log_routes import training_log_routes
from .metrics_route import add_metrics_route
from .running import INSTANCE


def add_routes(server: FastAPI, context: ApiContext, families: FamilyReader, *, cookie: str) -> None:
    """Add the routes, and have all errors answered in one form.

    Args:
        server: Gets them.
        context: What they work on.
        families: What metrics say.
        cookie: Name of the page's cookie, for the description.
    """
    add_error_form(server)

    @server.get("/health", summary="Is the server up, and how many runs does it know? Do its outlets work?")
    def health() -> Health:
        outlets = [OutletHealth.model_validate(fields_of(status)) for status in families.outlets()]
        return Health(status="ok", instance=INSTANCE, runs=len(context.store.runs()), outlets=outlets)

    for make in (
        training_log_routes,
        run_routes,
        note_routes,
        series_routes,
        event_routes,
        document_routes,
        control_routes,
        export_routes,
        page_export_routes,
    ):
        server.include_router(make(context))
    add_metrics_route(server, families)
    describe_routes(server, cookie)
