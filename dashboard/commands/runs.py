"""`dashboard runs`: the runs of a spool, newest first, with state and verdict, from their journals alone."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Final

from msgspec import UNSET

from probe.delivery.spool_care import is_written
from probe.settings.places import default_spool
from probe.wire import Event
from probe.wire.causes import Cause, group_by_cause, of_newest_start, worst_cause
from probe.wire.event_texts import headline, model_label

from ..page.views.event_facts import SEVERITY_ICONS
from ..runs import RunFolder, printable, read_events, resolve_runs
from .events import known_events
from .resume import newest_writers

_LISTED: Final = 40
"""Runs of the table; JSON has all."""
_SENTENCE: Final = 120
"""Characters of a verdict in the table."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownRun:
    """One training, with all its models."""

    models: tuple[RunFolder, ...]
    """Oldest first."""
    is_running: bool
    critical: int
    warnings: int
    worst: Event | None
    """The event that the page's verdict line names."""
    problem: str = ""
    """What of it cannot be read: then that no warning was found says nothing."""

    @property
    def first(self) -> RunFolder:
        """The run that leads to all of them."""
        return self.models[0]

    @property
    def called(self) -> str:
        """``train.py (generator, critic)``."""
        name = self.first.name
        models = ", ".join(one.model for one in self.models if one.model and f"({one.model})" not in name)
        return f"{name or '?'} ({models})" if models else name or "?"


def known_runs(spool: Path | None) -> Iterator[KnownRun]:
    """Yield the runs of a spool, newest first; each is read when it is asked for.

    Raises:
        NotASpoolError: the folder is something else.
    """
    folder = default_spool() if spool is None else spool
    runs = resolve_runs(str(folder.absolute())) if folder.exists() else []
    groups: dict[str, list[RunFolder]] = {}
    for run in runs:
        groups.setdefault(run.group, []).append(run)
    for models in reversed(list(groups.values())):
        yield _read(tuple(models))


def _read(models: tuple[RunFolder, ...]) -> KnownRun:
    events: list[Event] = []
    causes: list[Cause] = []
    problems = [run.problem for run in models]
    is_running, unreadable = False, 0
    for run in models:
        # Models are starts of their own, which say nothing of each other.
        journal = read_events([run.path])
        unreadable += journal.unreadable
        own = known_events(run, journal)
        newest = newest_writers(run.path, None)
        killed = {f"{event.rank}-{event.incarnation}" for event in own if event.kind == "killed"}
        is_over = newest and all(one in journal.ended or one.name in killed for one in newest.values())
        is_running = is_running or (not is_over and is_written(run.path))
        starts = {rank: int(folder.name.partition("-")[2]) for rank, folder in newest.items()}
        events += own
        causes += group_by_cause(of_newest_start(own, starts))
    if unreadable:
        problems.append(
            f"{unreadable:,} event record{'s are' if unreadable > 1 else ' is'} missing or damaged"
        )
    cause = worst_cause(sorted(causes, key=lambda cause: cause.origin.time))
    return KnownRun(
        models=models,
        is_running=is_running,
        critical=sum(event.severity == "critical" for event in events),
        warnings=sum(event.severity == "warning" for event in events),
        worst=None if cause is None else cause.origin,
        problem="; ".join(filter(None, dict.fromkeys(problems))),
    )


def json_lines(runs: Iterator[KnownRun]) -> Iterator[str]:
    """One object a line: id, name, models, start, state, counts, and the verdict with event and member."""
    for run in runs:
        fields: dict[str, Any] = {
            "v": 1,
            "run": run.first.run,
            "name": run.first.name,
            "models": [{"run": one.run, "model": one.model} for one in run.models],
            "started": run.first.started,
            "state": "running" if run.is_running else "ended",
            "critical": run.critical,
            "warnings": run.warnings,
            "verdict": None if run.worst is None else headline(run.worst),
            "event": None if run.worst is None else run.worst.id,
            "problem": printable(run.problem) or None,
            "member": None if run.worst is None or run.worst.member is UNSET else run.worst.member,
            "folder": str(run.first.path),
        }
        yield json.dumps(fields)


def table_lines(runs: Iterator[KnownRun]) -> Iterator[str]:
    """A line for each of the newest runs, and one below it where there is something to say."""
    shown = list(islice(runs, _LISTED))
    if not shown:
        yield "No runs yet; record one with `dashboard run SCRIPT`."
        return
    width = max(len(printable(run.called)) for run in shown)
    for run in shown:
        began = (
            time.strftime("%Y-%m-%d %H:%M", time.localtime(run.first.started)) if run.first.started else "?"
        )
        state = "running" if run.is_running else "ended"
        unjudged = "?" if run.problem else "✓"
        icon = unjudged if run.worst is None else SEVERITY_ICONS[run.worst.severity]
        yield f"{icon} {run.first.run}  {printable(run.called):<{width}}  {began}  {state:<7}  {_counts(run)}"
        worst = "" if run.worst is None else model_label(run.worst) + headline(run.worst)
        for said in (run.problem, worst):
            if text := printable(said):
                yield f"    {text if len(text) <= _SENTENCE else text[:_SENTENCE].rstrip() + ' ...'}"
    if next(runs, None) is not None:
        yield "Older runs are not listed; `dashboard runs --json` has all."


def _counts(run: KnownRun) -> str:
    parts = [
        f"{run.critical:,} critical" if run.critical else "",
        f"{run.warnings:,} warning{'' if run.warnings == 1 else 's'}" if run.warnings else "",
    ]
    return ", ".join(filter(None, parts)) or ("no verdict" if run.problem else "no warnings")
