"""Puts the page together: Dash on FastAPI, its callbacks, and the routes for live data, exports and health.

Called once by the server while it starts. Imports Dash, Plotly and pandas, so it is imported late.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from dash import Dash
from fastapi import FastAPI, WebSocket
from fastapi.middleware.gzip import GZipMiddleware

from .. import ids
from ..callers import may_change
from ..ingest.control_desk import ControlDesk
from ..live.hub import Hub
from ..outlets.families import FamilyReader
from ..packaged import packaged_file
from ..page.callbacks.controls import register_controls
from ..page.callbacks.documents import register_documents
from ..page.callbacks.events import register_events
from ..page.callbacks.memory import register_memory
from ..page.callbacks.module_times import register_module_times
from ..page.callbacks.page import register_page
from ..page.callbacks.profiles import register_profiles
from ..page.callbacks.rows import register_rows
from ..page.callbacks.run_actions import register_run_actions
from ..page.callbacks.run_picker import register_run_picker
from ..page.callbacks.runs import register_runs
from ..page.callbacks.system import register_doctor, register_system
from ..page.callbacks.watchpoints import register_watchpoints
from ..page.layout import page_layout
from ..page.static_parts import callback_ids, take_static
from ..page.visible_components import return_visible_text
from ..store.protocol import Store
from .api.context import ApiContext
from .dash_routes import log_failed_callback, mend_routes
from .doctor_checks import probe_findings, serving_findings
from .profile_routes import add_profile_routes
from .routes import add_routes

LIVE_PATH: Final = "/live"
SET_BY_SCRIPTS: Final = (ids.PROVIDER,)
"""Components that are in no callback, and whose properties scripts set."""
_INDEX: Final = """<!DOCTYPE html>
<html lang="en">
  <head>
    {%metas%}
    <meta name="color-scheme" content="dark light">
    <title>{%title%}</title>
    <link rel="icon" type="image/svg+xml" href="/assets/ns_icon.svg">
    {%css%}
  </head>
  <body>
    {%app_entry%}
    {parts}
    <div class="ns-skeleton" aria-hidden="true"><i></i><i></i><i></i><i></i><i></i><i></i></div>
    <footer>{%config%}{%scripts%}{%renderer%}</footer>
  </body>
</html>"""


def create_app(
    store: Store,
    hub: Hub,
    desk: ControlDesk,
    families: FamilyReader,
    *,
    page: str,
    ingest: str,
    spool: Path | None,
    cookie: str,
) -> tuple[Dash, FastAPI]:
    """Return the page and the FastAPI app that serves it.

    Args:
        store: Where runs are kept.
        hub: Feeds open pages.
        desk: Takes requests to running trainings.
        families: What metrics say.
        page: Address of the page, without the token.
        ingest: Address that probes ship to.
        spool: Where trainings on this machine write; it has journals, and the traces of profiles.
        cookie: Name of the page's cookie.
    """
    # Swagger's own pages load scripts from elsewhere; the description stays at /openapi.json.
    server = FastAPI(title="nanscope", docs_url=None, redoc_url=None, redirect_slashes=False)
    app = Dash(
        "dashboard",
        server=server,
        backend="fastapi",
        assets_folder=str(packaged_file("assets")),
        # A worker is started by the script that needs it.
        assets_ignore=r"_worker\.js$",
        title="nanscope",
        update_title=None,
        serve_locally=True,
        on_error=log_failed_callback,
    )
    return_visible_text(app)
    register_page(app)
    register_events(app, store)
    register_rows(app, store, desk)
    register_documents(app, store)
    register_memory(app, store)
    register_system(app, store, spool=spool)
    register_doctor(app, serving=serving_findings, recording=probe_findings)
    register_watchpoints(app, desk)
    register_module_times(app, store)
    register_profiles(app, desk)
    register_controls(app, store, desk)
    register_run_actions(app, store, desk, spool=spool, changed=hub.notify)
    register_run_picker(app, store)
    register_runs(app, store, spool=spool, changed=hub.notify)
    layout = page_layout(page=page, ingest=ingest)
    parts = take_static(layout, callback_ids(app.callback_map, SET_BY_SCRIPTS))
    app.index_string = _INDEX.replace("{parts}", parts)
    _say_role(app)
    app.layout = layout
    context = ApiContext(store=store, desk=desk, spool=spool, changed=hub.notify)
    add_routes(server, context, families, cookie=cookie)
    if spool is not None:
        add_profile_routes(server, spool)
    _add_live_feed(server, hub)
    _leave_unknown_paths(app)
    mend_routes(app, server)
    middleware: Any = GZipMiddleware
    server.add_middleware(middleware, minimum_size=1024, compresslevel=4)
    return app, server


def _say_role(app: Dash) -> None:
    """Have the page of who may only look say so, to its scripts and styles."""
    whole = app.interpolate_index

    def with_role(**parts: Any) -> str:
        page: str = whole(**parts)
        return page if may_change() else page.replace("<html", '<html data-role="view"', 1)

    app.interpolate_index = with_role


def _leave_unknown_paths(app: Dash) -> None:
    """Have no page answer every path: Dash adds one when the server starts, for apps of several pages."""
    app.backend._setup_catchall = lambda: None


def _add_live_feed(server: FastAPI, hub: Hub) -> None:
    @server.websocket(LIVE_PATH)
    async def live(websocket: WebSocket) -> None:
        await hub.serve(websocket)
