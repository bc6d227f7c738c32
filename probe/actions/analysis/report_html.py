"""A report as one page that needs nothing else: tables and pictures, no script, no request. Pure.

Everything that comes from a run is text: it is escaped, and nothing of it becomes an attribute but numbers.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from html import escape
from typing import Any, Final

from . import tables
from .report_svg import heatmap, line_chart, timeline
from .run_report import RunReport

_POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'"
_MOST_ROWS: Final = 200
"""Of a table; the JSON report has the rest."""
_MANY: Final = 6
"""Columns from which on a table scrolls sideways instead of breaking its cells."""
_CELL: Final = 400
"""Characters of a table's cell."""
_TEXT: Final = 4000
_TITLES: Final = {
    "loss": "Loss",
    "val_loss": "Validation loss",
    "grad_norm": "Gradient norm (L2)",
    "step_time_s": "Step time",
    "lr": "Learning rate",
    "process_rss_bytes": "Memory of the process",
    "cuda_allocated_bytes": "Memory on CUDA",
}
_STYLE: Final = """
:root{--back:#fff;--text:#1f2933;--soft:#5f6b76;--edge:#d9dee3;--line:#1c6fb5;--bad:#c92a2a;--warn:#b35c00}
:root{--info:#5f6b76}
@media(prefers-color-scheme:dark){:root{--back:#14181d;--text:#e4e8ec;--soft:#98a3ad;--edge:#343b43;--line:#64b1f0;
--bad:#ff7b7b;--warn:#ffb15c;--info:#98a3ad}}
body{background:var(--back);color:var(--text);font:15px/1.5 system-ui,sans-serif;max-width:1040px}
body{margin:2rem auto;padding:0 1rem}h1{font-size:1.5rem;margin:0}
h2{font-size:1.15rem;margin:2.2rem 0 .6rem;border-bottom:1px solid var(--edge)}
h3{font-size:1rem;margin:1.2rem 0 .3rem}table{border-collapse:collapse;font-size:13px;width:100%}
th,td{text-align:left;padding:.25rem .6rem;border-bottom:1px solid var(--edge);vertical-align:top}
td{overflow-wrap:anywhere}
.many td{white-space:nowrap}th{color:var(--soft);font-weight:600;white-space:nowrap}.wide{overflow-x:auto}
pre{white-space:pre-wrap;overflow-wrap:anywhere;font-size:12.5px}.soft{color:var(--soft)}svg{width:100%;max-width:900px;height:auto;display:block}
.label{fill:var(--soft);font-size:11px}.grid{stroke:var(--edge)}.line{fill:none;stroke:var(--line);stroke-width:1.6}
.band{fill:var(--line);opacity:.18}.dot{fill:var(--line)}.bad{stroke:var(--bad);stroke-width:1.5}
.critical{fill:var(--bad);color:var(--bad)}.warning{fill:var(--warn);color:var(--warn)}.info{fill:var(--info);color:var(--info)}
"""


def report_page(report: RunReport) -> str:
    """Return the whole page as HTML."""
    verdict = "nothing out of the ordinary" if report.ok else "look at the events"
    sections = [
        ("Summary", _summary(report)),
        ("Events", _events(report)),
        ("Training", _charts(report, ("loss", "val_loss", "grad_norm", "lr", "step_time_s"))),
        ("Logged values", _charts(report, [name for name in report.curves if name.startswith("log/")])),
        ("Gradient flow", _flow(report)),
        ("Gradient violations", _rows(report.gradient_violations)),
        ("Memory", _memory(report)),
        ("CUDA", _cuda(report.extra.get("cuda"))),
        ("Regions", _documents(report.regions)),
        ("Profiles", _documents(report.profiles)),
        ("Optimisations", _optimizations(report.optimizations)),
        ("Model", _model(report)),
        ("Series", _rows([one.to_dict() for one in report.series])),
        ("Settings", _value(report.extra.get("settings"))),
        ("Versions and start", _mapping({**report.versions, **report.facts})),
        *((title, _value(value)) for title, value in report.extra.items() if title not in _PLACED),
        ("Steps", _rows(report.steps)),
    ]
    body = "".join(f"<h2>{escape(title)}</h2>{content}" for title, content in sections if content)
    notes = "".join(f"<p>{escape(note)}</p>" for note in report.notes)
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        f"<title>{escape(report.name or report.run)}</title><style>{_STYLE}</style></head><body>"
        f"<h1>{escape(report.name or report.run)}: {verdict}</h1>"
        f'<p class="soft">{escape(" ".join(line.strip() for line in report.headline()))}. '
        f"Started {escape(_moment(report.started))}.</p>{notes}{body}</body></html>\n"
    )


_PLACED: Final = frozenset({"cuda", "settings", "model", "parameters", "summary"})
"""What the caller adds and has a place above."""


def _summary(report: RunReport) -> str:
    summary = report.extra.get("summary")
    shown: Mapping[str, Any] = summary if isinstance(summary, Mapping) else report.training
    flat = {name: value for name, value in shown.items() if not isinstance(value, Mapping | list | tuple)}
    nested = {
        name: ", ".join(
            f"{key} {tables.number(item) if _is_number(item) else item}" for key, item in value.items()
        )
        for name, value in shown.items()
        if isinstance(value, Mapping)
        and name in ("event_counts", "gradient_anomalies", "history_sizes", "memory")
    }
    return _mapping({**report.training, **flat, **nested})


def _events(report: RunReport) -> str:
    if not report.events:
        return "<p>No events: nothing out of the ordinary.</p>"
    first = min([one["step"] for one in report.events] + [report.first_step or 0])
    last = max([one["step"] for one in report.events] + [report.last_step or 0])
    rows = [
        f'<tr><td>{event["step"]:,}</td><td class="{_severity(event)}">{_severity(event)}</td>'
        f"<td>{escape(str(event['kind']))}</td><td>{event['count']:,}</td><td>{_message(event)}</td></tr>"
        for event in report.events[-_MOST_ROWS:]
    ]
    head = "<tr><th>step</th><th>severity</th><th>kind</th><th>steps</th><th>what</th></tr>"
    return timeline(report.events, first, last) + _cut(len(report.events)) + _wide(head + "".join(rows))


def _message(event: Mapping[str, Any]) -> str:
    """The first line, and folded what follows: the rest, the advice and the stacks."""
    first, _, rest = str(event["message"]).partition("\n")
    stacks = [
        f"{title.replace('_', ' ')}: {frame['file']}:{frame['line']} in {frame['function']}"
        for title, frames in event["stacks"].items()
        for frame in frames[-5:]
    ]
    more = "\n".join(part for part in (rest, *event["advice"], *stacks) if part)
    folded = f"<details><summary>more</summary><pre>{_text(more, _TEXT)}</pre></details>" if more else ""
    return f"{_text(first, _TEXT)}{folded}"


def _charts(report: RunReport, names: Iterable[str]) -> str:
    parts = []
    for name in names:
        points = report.curves.get(name, ())
        text = (
            tables.duration
            if name.endswith("_s")
            else tables.size
            if name.endswith("_bytes")
            else tables.number
        )
        title = _TITLES.get(name, name.removeprefix("log/"))
        if points:
            parts.append(f"<h3>{escape(title)}</h3>{line_chart(points, text=text)}")
    return "".join(parts)


def _flow(report: RunReport) -> str:
    flow, norms = report.gradient_flow, report.last_gradient_norms
    if not flow["layers"]:
        return ""
    rows = [
        {
            "layer": tables.root_or(layer["name"]),
            "newest norm": tables.number(norms.get(layer["name"])),
            "over the next layer's": tables.number(layer["ratio"]),
        }
        for layer in flow["layers"]
    ]
    caption = (
        '<p class="soft">L2 norm of each layer\'s gradient by its logarithm, dark to bright; '
        "red is NaN or Inf.</p>"
    )
    return caption + heatmap(flow["steps"], flow["layers"]) + _rows(rows)


def _memory(report: RunReport) -> str:
    charts = _charts(report, ("process_rss_bytes", "cuda_allocated_bytes"))
    epochs = _rows([one.to_dict() for one in report.epochs])
    snapshots = _documents(report.memory_snapshots)
    return (
        charts
        + ("<h3>Epochs</h3>" + epochs if epochs else "")
        + ("<h3>Snapshots</h3>" + snapshots if snapshots else "")
    )


def _model(report: RunReport) -> str:
    counted = (
        f"<p>{escape(report.model)}: {report.layers:,} layers, {report.parameters:,} parameter tensors</p>"
    )
    inspected = [_pre(report.extra[name]) for name in ("model", "parameters") if name in report.extra]
    return counted + "".join(inspected) + _rows(report.parameter_table)


def _documents(documents: Sequence[Mapping[str, Any]]) -> str:
    """A row for each; of a body that is no mapping its JSON."""
    rows = [
        {"": one["key"], "step": one["step"]}
        | (dict(one["body"]) if isinstance(one["body"], Mapping) else {"body": one["body"]})
        for one in documents
    ]
    return _rows(rows)


def _optimizations(documents: Sequence[Mapping[str, Any]]) -> str:
    """Of each comparison of modes the recommendation, and a row for each mode."""
    parts = []
    for one in documents:
        body = one["body"]
        if not isinstance(body, Mapping) or not isinstance(body.get("rows"), Sequence):
            parts.append(_documents([one]))
            continue
        mode, why = body.get("recommended"), body.get("why")
        said = f"{body.get('model')} on {body.get('device')}, recommended: {mode}. {why}"
        parts.append(f"<p>{_text(said, _TEXT)}</p>{_rows(body['rows'])}")
    return "".join(parts)


def _cuda(facts: Any) -> str:
    """Versions, and a row for each device: many devices do not fit into a cell."""
    if not isinstance(facts, Mapping) or not facts.get("devices"):
        return _value(facts)
    rest = {name: value for name, value in facts.items() if name != "devices"}
    return _mapping(rest) + _rows(facts["devices"])


def _value(value: Any) -> str:
    """A mapping as rows of name and value, anything else as its own text."""
    if not value:
        return ""
    return _mapping(value) if type(value) is dict else _pre(value)


def _mapping(values: Mapping[str, Any]) -> str:
    rows = "".join(
        f"<tr><th>{_text(name)}</th><td>{_text(value)}</td></tr>" for name, value in values.items()
    )
    return _wide(rows) if rows else ""


def _rows(rows: Sequence[Mapping[str, Any]]) -> str:
    """A table whose columns are the names in any of the rows; of many rows the newest."""
    names = list(dict.fromkeys(name for row in rows for name in row))[:30]
    if not rows:
        return ""
    head = "".join(f"<th>{_text(name)}</th>" for name in names)
    body = "".join(
        "<tr>" + "".join(f"<td>{_text(row.get(name))}</td>" for name in names) + "</tr>"
        for row in rows[-_MOST_ROWS:]
    )
    table = f"<table{' class=many' if len(names) > _MANY else ''}><tr>{head}</tr>{body}</table>"
    return f'{_cut(len(rows))}<div class="wide">{table}</div>'


def _cut(count: int) -> str:
    if count <= _MOST_ROWS:
        return ""
    return f'<p class="soft">the newest {_MOST_ROWS} of {count:,}; the JSON report has more</p>'


def _wide(rows: str) -> str:
    return f'<div class="wide"><table>{rows}</table></div>'


def _pre(value: Any) -> str:
    return f"<pre>{_text(str(value), 50_000)}</pre>"


def _severity(event: Mapping[str, Any]) -> str:
    severity = event["severity"]
    return str(severity) if severity in ("critical", "warning", "info") else "info"


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _text(value: Any, limit: int = _CELL) -> str:
    """Any value for reading, escaped and cut."""
    if value is None:
        shown = "-"
    elif isinstance(value, float):
        shown = tables.number(value)
    elif isinstance(value, Mapping | list | tuple):
        shown = json.dumps(value, default=str)
    else:
        shown = str(value)
    return escape(shown if len(shown) <= limit else f"{shown[:limit]} ...")


def _moment(seconds: float | None) -> str:
    if seconds is None:
        return "at an unknown time"
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
