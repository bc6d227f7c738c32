"""A run as one HTML file that opens from disk with no network and no server, in dark and light.

Everything is inline: plotly.js (once), styles, a small script, the figures as JSON. A content security policy
allows exactly those two scripts, by hash, and no request. Called by the command line and by the page.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal

from plotly.offline import get_plotlyjs

from probe.wire import SEVERITIES, RunStart

from ..packaged import packaged_file
from ..page.views import event_facts as facts
from ..page.views.evidence import Fact
from ..page.views.heatmap_statistics import DEFAULT_STATISTIC
from ..page.views.theme import ALL_STEPS
from ..page.views.visible_text import html_text as escape
from ..store.protocol import StepRange, Store
from .event_html import event_html
from .figures import PageFigure, page_figures
from .snapshot import Snapshot, take_snapshot

PageTheme = Literal["dark", "light", "system"]
MAX_STACKS: Final = 200
"""Events with stack traces in one file: each takes some 50 kB."""
_FOLDER: Final = Path(__file__).resolve().parent


def export_html(
    store: Store,
    run: str,
    *,
    rank: int = 0,
    steps: StepRange = ALL_STEPS,
    theme: PageTheme = "dark",
    statistic: str = DEFAULT_STATISTIC,
    track: str | None = None,
) -> str:
    """Return one rank of a run as a self-contained HTML document.

    Args:
        store: The live store, or a temporary one.
        run: Run id.
        rank: Rank whose data is shown.
        steps: Range of steps; open ends mean the whole run.
        theme: What it opens in; its reader can switch. "system" follows the reader's setting.
        statistic: What the heatmap shows, an id of `STATISTICS`.
        track: The only one that is drawn, see `tracks.py`; None is all of them.

    Raises:
        UnknownRunError: the store has no such run or rank.
        UnknownTrackError: the rank has no such track.
    """
    snapshot = take_snapshot(store, run, rank=rank, steps=steps, statistic=statistic, track=track)
    return page_html(snapshot, theme=theme)


def page_html(snapshot: Snapshot, *, theme: PageTheme) -> str:
    """Put the document together."""
    figures = page_figures(snapshot)
    plotly_js, page_js = get_plotlyjs(), _text("page.js")
    style = _text("page.css") + packaged_file("assets/event.css").read_text(encoding="utf-8")
    title = escape(f"{snapshot.run.name or snapshot.run.run} · nanscope")
    data = {
        figure.id: {"light": figure.light, "dark": figure.dark_patch, "height": figure.height}
        for figure in figures
    }
    return (
        f'<!doctype html>\n<html lang="en" data-theme="{theme}">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_policy(plotly_js, page_js)}">\n'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">\n<title>{title}</title>\n'
        f"<style>{style}</style>\n</head>\n<body>\n{_header(snapshot)}\n<main>\n{_charts(figures)}\n"
        f"{_notes(snapshot)}{_events(snapshot)}\n</main>\n"
        f'<script type="application/json" id="figures">{script_json(data)}</script>\n'
        f"<script>{plotly_js}</script>\n<script>{page_js}</script>\n</body>\n</html>\n"
    )


def script_json(value: Any) -> str:
    """JSON that cannot end the script element it stands in: no ``<``, ``>`` or ``&`` is left."""
    text = json.dumps(value, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _text(name: str) -> str:
    return (_FOLDER / name).read_text(encoding="utf-8")


def _policy(*scripts: str) -> str:
    """Allow these scripts by hash, inline styles (plotly.js writes some) and images made in the page."""
    digests = (base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts)
    allowed = " ".join(f"'sha256-{digest}'" for digest in digests)
    return (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data: blob:; "
        "base-uri 'none'; form-action 'none'"
    )


def _header(snapshot: Snapshot) -> str:
    summary = snapshot.run
    rows = "".join(
        f"<dt>{escape(fact.label)}</dt><dd>{escape(fact.value)}</dd>"
        for fact in run_facts(snapshot)
        if fact.value
    )
    return (
        f'<header><div class="bar"><h1>{escape(summary.name or summary.run)}</h1>'
        '<button type="button" id="theme-switch">Switch theme</button></div>'
        f'<dl class="event-facts">{rows}</dl><p class="range">{escape(range_sentence(snapshot))}</p></header>'
    )


def run_facts(snapshot: Snapshot) -> list[Fact]:
    """What the reader has to know about the run itself."""
    summary, start = snapshot.run, snapshot.run.start
    (rank,) = [known for known in summary.ranks if known.rank == snapshot.rank]
    pairs = {
        "Run": summary.run,
        "Track": "" if snapshot.track is None else f"{snapshot.track.title}, alone",
        "Rank": f"{snapshot.rank} of {start.world_size}",
        "State when exported": rank.state,
        "Started": facts.absolute_time(summary.started),
        "Exported": facts.absolute_time(snapshot.exported),
        "Host": start.host,
        "Command": " ".join(start.argv),
        "Versions": _versions(start),
        "Commit": start.git_commit or "",
        "Options of watch": _pairs(start.options),
        "Hyperparameters": _pairs(start.config),
        "Seed of torch": "" if start.torch_seed is None else str(start.torch_seed),
        "Breaks (dotted lines)": "; ".join(each.text for each in snapshot.breaks),
        "Devices": ", ".join(start.devices),
        "Events": facts.severity_counts(snapshot.events),
    }
    return [Fact(label=label, value=value) for label, value in pairs.items()]


def _pairs(values: Mapping[str, str]) -> str:
    return ", ".join(f"{name}={value}" for name, value in values.items())


def range_sentence(snapshot: Snapshot) -> str:
    """Say which steps the file covers, how they were down-sampled, and what is known to be missing."""
    covered = snapshot.covered
    if covered.first is None or covered.end is None:
        return "No step has been recorded in this range."
    parts = [f"Covers steps {covered.first:,} to {covered.end - 1:,}."]
    if snapshot.steps_per_point > 1:
        parts.append(
            f"A point of a line stands for up to {snapshot.steps_per_point:,} steps: mean, min and max."
        )
    if snapshot.steps_per_column > 1:
        parts.append(f"A column of the heatmap is the max of {snapshot.steps_per_column:,} steps.")
    if len(parts) == 1:
        parts.append("Nothing is down-sampled: each recorded step is one point.")
    if missing := sum(gap.count for gap in snapshot.gaps if not gap.is_partial):
        parts.append(f"{missing:,} records are missing (grey bands).")
    parts += [f"{gap.reason}." for gap in snapshot.gaps if gap.is_partial]
    if missing := sum(one.gaps for one in snapshot.positions if one.key.stream != "metrics"):
        parts.append(f"Records of events and of what the helper observed that are missing: {missing:,}.")
    return " ".join(parts)


def _versions(start: RunStart) -> str:
    return ", ".join(f"{name} {version}" for name, version in start.versions.items())


def _charts(figures: Sequence[PageFigure]) -> str:
    return "\n".join(
        f'<div class="chart" id="chart-{figure.id}" style="height:{figure.height}px" role="img" '
        f'aria-label="{escape(figure.label)}"></div>'
        for figure in figures
    )


def _notes(snapshot: Snapshot) -> str:
    """What people have written at steps; nothing where nobody has."""
    rows = "".join(f"<dt>step {note.step:,}</dt><dd>{escape(note.text)}</dd>" for note in snapshot.notes)
    return (
        f'<section id="notes"><h2>Notes</h2><dl class="event-facts">{rows}</dl></section>\n' if rows else ""
    )


def _events(snapshot: Snapshot) -> str:
    """All events by step; beyond `MAX_STACKS` only the severest ones keep their stacks."""
    severest = sorted(snapshot.events, key=lambda event: SEVERITIES.index(event.severity))
    kept = {event.id for event in severest[:MAX_STACKS]}
    items = "\n".join(
        event_html(event, started=snapshot.run.started, stacks=event.id in kept) for event in snapshot.events
    )
    note = "" if snapshot.events else "<p>No event was recorded in this range.</p>"
    if len(snapshot.events) > MAX_STACKS:
        note = f"<p>Stack traces of the {MAX_STACKS} severest events only; the JSON export has all.</p>"
    return f'<section id="events"><h2>Events</h2>{note}\n{items}</section>'
