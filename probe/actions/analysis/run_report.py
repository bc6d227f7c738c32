"""What a run's journal says, as one report for a person and one for a program. Reads files; no torch.

Called at the end of a run. Of a long run only the newest metrics are read, and the report says so.
`report_html.py` draws it, `report_files.py` writes it.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Final

from msgspec import UNSET

from ...wire import Event, Layout
from ...wire.event_json import event_json
from ...wire.run_summary import count_run
from . import tables
from .call_results import Result
from .report_contents import Contents, EpochMemory, gradient_flow, layer_norms, read_contents
from .report_curves import CurvePoint, SeriesSummary

_EPOCHS: Final = 1000
_SEVERITIES: Final = ("critical", "warning", "info")
_MOST_PARAMETERS: Final = 10_000
GRADIENT_KINDS: Final = frozenset(
    {
        *("gradient_explosion", "gradient_vanishing", "nonfinite_gradient", "zero_gradient"),
        "accumulated_gradient",
    }
)
"""Events that say that gradients are not as they should be."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunReport(Result):
    """One rank of one run, as its journal has it."""

    _derived: ClassVar[tuple[str, ...]] = ("ok",)

    run: str
    name: str
    rank: int
    level: str
    started: float | None
    """UNIX seconds."""
    versions: dict[str, str]
    facts: dict[str, Any]
    """What `run.json` says besides: host, command line, git commit, devices, seed, ..."""
    model: str
    layers: int
    parameters: int
    """Parameter tensors."""
    parameter_table: tuple[dict[str, Any], ...]
    """Name, shape, dtype and layer of each parameter, the first 10,000."""
    first_step: int | None
    """Of the metrics that were read."""
    last_step: int | None
    metrics_complete: bool
    """False when only the newest metrics were read, or some are lost."""
    training: dict[str, Any]
    """Counts and rates, see `wire.run_summary`."""
    series: tuple[SeriesSummary, ...]
    curves: dict[str, tuple[CurvePoint, ...]]
    """Of the main series, pooled to at most 256 points."""
    steps: tuple[dict[str, Any], ...]
    """The newest 500 steps with all their scalars."""
    epochs: tuple[EpochMemory, ...]
    """Of the metrics that were read, the newest 1000."""
    last_gradient_norms: dict[str, float]
    """L2 norm of each layer's gradient at the last step that has them."""
    gradient_flow: dict[str, Any]
    """See `report_contents.gradient_flow`."""
    gradient_violations: tuple[dict[str, Any], ...]
    """The events of `GRADIENT_KINDS`."""
    event_counts: dict[str, int]
    """By kind."""
    severity_counts: dict[str, int]
    events: tuple[dict[str, Any], ...]
    """As docs/interfaces.md fixes them, by step."""
    memory_snapshots: tuple[dict[str, Any], ...]
    profiles: tuple[dict[str, Any], ...]
    regions: tuple[dict[str, Any], ...]
    optimizations: tuple[dict[str, Any], ...]
    """Documents of these kinds: `key`, `step`, `time`, `body`."""
    extra: dict[str, Any]
    """What the caller adds: parameters, settings, summary, CUDA, model."""
    notes: tuple[str, ...]

    @property
    def ok(self) -> bool:
        """No critical event and no warning."""
        return not any(self.severity_counts.get(severity) for severity in ("critical", "warning"))

    def __str__(self) -> str:
        """Verdict, series, events, regions, and what the caller added."""
        lines = [
            *self.headline(),
            *(f"  {note}" for note in self.notes),
        ]
        rows = [
            (s.name, *(tables.number(v) for v in (s.first, s.last, s.low, s.high, s.mean)), str(s.nonfinite))
            for s in self.series
        ]
        if rows:
            header = ("series", "first", "last", "lowest", "highest", "mean", "NaN/Inf")
            lines += ["", *tables.table(header, rows)]
        if self.epochs:
            lines += ["", *_epoch_table(self.epochs)]
        lines += ["", *_flow_table(self.gradient_flow, self.last_gradient_norms)]
        lines += ["", "events" if self.events else "no events"]
        lines += [_event_line(event) for event in self.events[-tables.MAX_ROWS :]]
        for title, documents in self.documents().items():
            lines += ["", f"{title}:", *(f"  {one['key']}: {one['body']}" for one in documents[-20:])]
        for title, value in self.extra.items():
            lines += ["", f"{title}:", str(value)]
        return "\n".join(lines)

    def headline(self) -> list[str]:
        """Which run, how many steps, how many events; which model."""
        seen = "no step" if self.last_step is None else f"steps {self.first_step} to {self.last_step}"
        counts = ", ".join(f"{self.severity_counts.get(severity, 0)} {severity}" for severity in _SEVERITIES)
        return [
            f"run {self.run} ({self.name}), rank {self.rank}, level {self.level}: {seen}; events: {counts}",
            f"  model {self.model}: {self.layers} layers, {self.parameters} parameter tensors",
        ]

    def documents(self) -> dict[str, tuple[dict[str, Any], ...]]:
        """What was measured as a whole, by title, where there is any."""
        named = {
            "memory snapshots": self.memory_snapshots,
            "profiles": self.profiles,
            "regions": self.regions,
            "optimisations": self.optimizations,
        }
        return {title: documents for title, documents in named.items() if documents}


def read_report(writer: Path, *, extra: dict[str, Any] | None = None) -> RunReport:
    """Read what one incarnation of one rank has written so far.

    Args:
        writer: its folder, `SPOOL/<run id>/<rank>-<incarnation>`.
        extra: results to be added, by title: `Result`s or anything that is JSON.
    """
    contents = read_contents(writer)
    start, layout = contents.start, contents.layout
    events = sorted(contents.events.values(), key=lambda event: (event.step, event.time))
    return RunReport(
        run=writer.parent.name,
        name="" if start is None else start.name,
        rank=int(writer.name.partition("-")[0]),
        level="" if start is None else start.level,
        started=None if start is None else start.time,
        versions={} if start is None else dict(start.versions),
        facts=_facts(contents),
        model="" if layout is None else layout.model,
        layers=0 if layout is None else len(layout.layers),
        parameters=0 if layout is None else len(layout.parameters),
        parameter_table=() if layout is None else _parameter_table(layout),
        first_step=contents.first_step,
        last_step=contents.last_step,
        metrics_complete=not contents.notes,
        training=count_run(events, contents.total_steps, is_whole=True).training(),
        series=tuple(series.summary(name) for name, series in contents.series.items()),
        curves={name: curve.points() for name, curve in contents.curves.items()},
        steps=tuple(contents.steps),
        epochs=tuple(contents.epochs.values())[-_EPOCHS:],
        last_gradient_norms=layer_norms(contents, contents.newest),
        gradient_flow=gradient_flow(contents),
        gradient_violations=_violations(events),
        event_counts=dict(Counter(event.kind for event in events)),
        severity_counts=dict(Counter(event.severity for event in events)),
        events=tuple(event_json(event) for event in events),
        memory_snapshots=tuple(contents.documents_of("memory_snapshot")),
        profiles=tuple(contents.documents_of("profile")),
        regions=tuple(contents.documents_of("region")),
        optimizations=tuple(contents.documents_of("optimization")),
        extra=extra or {},
        notes=tuple(contents.notes),
    )


def _facts(contents: Contents) -> dict[str, Any]:
    """The start record, but for what the report has in fields of its own and what is absent."""
    if contents.start is None:
        return {}
    own = {"run", "rank", "name", "level", "time", "versions", "model"}
    fields = ((name, getattr(contents.start, name)) for name in contents.start.__struct_fields__)
    return {name: value for name, value in fields if name not in own and value is not UNSET}


def _parameter_table(layout: Layout) -> tuple[dict[str, Any], ...]:
    return tuple(
        {
            "name": one.name,
            "shape": list(one.shape),
            "dtype": one.dtype,
            "layer": layout.layers[one.layer].name if one.layer < len(layout.layers) else "",
        }
        for one in layout.parameters[:_MOST_PARAMETERS]
    )


def _violations(events: list[Event]) -> tuple[dict[str, Any], ...]:
    """Where and how often gradients were found to be wrong, with the value and its limit."""
    return tuple(
        {
            "step": event.step,
            "last_step": event.last_step,
            "kind": event.kind,
            "severity": event.severity,
            "subject": event.subject,
            "value": event.evidence.value,
            "threshold": event.evidence.threshold,
            "count": event.count,
        }
        for event in events
        if event.kind in GRADIENT_KINDS
    )


def _epoch_table(epochs: tuple[EpochMemory, ...]) -> list[str]:
    """Memory at the end of each of the newest epochs, and how much more that is than at the one before."""
    rows, before = [], None
    for one in epochs:
        now = one.process_rss_bytes
        change = "" if now is None or before is None else tables.signed_size(now - before)
        device = "" if one.cuda_allocated_bytes is None else tables.size(one.cuda_allocated_bytes)
        rows.append((str(one.epoch), str(one.step), "" if now is None else tables.size(now), change, device))
        before = now
    return tables.table(("epoch", "last step", "process", "change", "CUDA"), rows[-tables.MAX_ROWS :])


def _flow_table(flow: dict[str, Any], norms: dict[str, float]) -> list[str]:
    """Each layer's newest norm, and how it relates to the layer behind it."""
    rows = [
        (
            tables.root_or(layer["name"]),
            tables.number(norms.get(layer["name"])),
            tables.number(layer["ratio"]),
        )
        for layer in flow["layers"]
    ]
    if not rows:
        return ["no gradients were seen"]
    return tables.table(("gradient flow: layer", "norm", "over the next layer's"), rows)


def _event_line(event: dict[str, Any]) -> str:
    first_line = str(event["message"]).splitlines()[0] if event["message"] else ""
    count = f" x{event['count']}" if event["count"] > 1 else ""
    return f"  step {event['step']:>8}  {event['severity']:<8}  {event['kind']}{count}: {first_line}"
