"""Plain HTTP routes beside the page: health, and exports as downloads. Handlers run on worker threads."""

from __future__ import annotations

import re
from typing import Annotated, Literal

import msgspec
from fastapi import FastAPI, HTTPException, Query
from fastapi.responses import Response

from probe.wire.event_json import event_json

from ..page.views.heatmap_statistics import DEFAULT_STATISTIC
from ..page.views.theme import Theme
from ..store.protocol import StepRange, Store

StepNumber = Annotated[int | None, Query(ge=0, le=2**53)]


def add_routes(server: FastAPI, store: Store) -> None:
    """Add the routes; all answer 404 for a run that is not there."""

    @server.get("/health", summary="Is the server up, and how many runs does it know?")
    def health() -> dict[str, object]:
        return {"status": "ok", "runs": len(store.runs())}

    @server.get("/export/html", summary="One self-contained HTML file of a run")
    def html(
        run: str,
        rank: int = 0,
        first: StepNumber = None,
        end: StepNumber = None,
        theme: Theme = "dark",
        heatmap: str = DEFAULT_STATISTIC,
    ) -> Response:
        from ..export.html import export_html

        _require(store, run)
        steps = StepRange(first=first, end=end)
        text = export_html(store, run, rank=rank, steps=steps, theme=theme, statistic=heatmap)
        return _download(text.encode(), run=run, kind="html")

    @server.get("/export/json", summary="A run's events, series and heatmap as JSON")
    def json(
        run: str,
        rank: int = 0,
        first: StepNumber = None,
        end: StepNumber = None,
        heatmap: str = DEFAULT_STATISTIC,
    ) -> Response:
        from ..export.json import export_json

        _require(store, run)
        document = export_json(
            store, run, rank=rank, steps=StepRange(first=first, end=end), statistic=heatmap
        )
        return _download(msgspec.json.encode(document), run=run, kind="json")

    @server.get("/export/event", summary="One event as JSON")
    def event(run: str, event: str) -> Response:
        found = store.event(run, event)
        if found is None:
            raise HTTPException(404, f"run {run!r} has no event {event!r}")
        return _download(msgspec.json.encode(event_json(found)), run=f"{run}-{event}", kind="json")


def _require(store: Store, run: str) -> None:
    if all(summary.run != run for summary in store.runs()):
        raise HTTPException(404, f"no run is called {run!r}")


def _download(body: bytes, *, run: str, kind: Literal["html", "json"]) -> Response:
    """Answer with a file; nothing but letters, digits, dot, dash and underscore gets into its name."""
    name = re.sub(r"[^A-Za-z0-9._-]", "_", run)
    media = "text/html; charset=utf-8" if kind == "html" else "application/json"
    headers = {
        "content-disposition": f'attachment; filename="nanscope-{name}.{kind}"',
        "cache-control": "no-store",
    }
    return Response(body, media_type=media, headers=headers)
