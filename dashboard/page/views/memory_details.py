"""Below the charts of memory: what feeds the growth, two snapshots compared, the tracked tensors. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd
from dash import html
from dash.development.base_component import Component

from probe.errors import WireError
from probe.wire import Event
from probe.wire.documents import read_body
from probe.wire.memory_snapshots import MemorySnapshot

from ...store.protocol import StoredDocument
from .memory_comparison import Moment, comparison
from .memory_growth import feeds_table, growth_sentences
from .tracked_table import tracked_table

_NO_LEAK = "No leak found."
_NO_SNAPSHOT = (
    "Two snapshots can be compared here. Take one in the script: ",
    'run.take_memory_snapshot("label")',
    ", or have them taken: ",
    "probe.watch(model, memory_snapshot_every=1000)",
    ".",
)
_NO_TENSOR = ("To see how long a tensor lives, call ", 'probe.track_tensor(tensor, "name")', ".")


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryFacts:
    """What the sections are made of."""

    series: pd.DataFrame
    """Rows of the series of `memory_growth.WATCHED`, in the steps in view."""
    free_bytes: float | None
    """Of the machine; None: not known."""
    leaks: Sequence[Event]
    """Events of kind `memory_leak`, by step."""
    choices: Sequence[tuple[str, MemorySnapshot]]
    """Id and snapshot of the newest start, oldest first."""
    moments: tuple[Moment, Moment] | None
    """The two that are compared; None where there are no two."""
    gone: tuple[bool, ...] = (False, False)
    """Whether the older and the newer one that were asked for are not there."""
    tracked: Sequence[StoredDocument]

    @property
    def is_empty(self) -> bool:
        """Whether the run has nothing to say of its memory."""
        return self.series.empty and not (self.leaks or self.choices or self.tracked or any(self.gone))


def memory_details(facts: MemoryFacts) -> list[Component]:
    """Return the sections; none where the run has nothing of memory."""
    if facts.is_empty:
        return []
    said = [
        html.P(text, className="ns-growth")
        for text in growth_sentences(facts.series, free_bytes=facts.free_bytes)
    ]
    if not said:
        said = [html.P("Too few readings in these steps to say whether memory grows.", className="ns-small")]
    fed = feeds_table(facts.leaks) or [html.P(_NO_LEAK, className="ns-small")]
    compared: list[Component] = [_how(_NO_SNAPSHOT)]
    if facts.moments is not None:
        compared = [comparison(facts.choices, *facts.moments, leaks=facts.leaks)]
    tracked = tracked_table(facts.tracked) or [_how(_NO_TENSOR)]
    return [
        _section("What feeds the growth", [*said, *fed]),
        _section("What grew between two snapshots", [*_gone(facts), *compared]),
        _section("Tracked tensors", tracked),
    ]


def snapshot_choices(documents: Sequence[StoredDocument]) -> list[tuple[str, MemorySnapshot]]:
    """Return id and snapshot of those of the newest start that decode, oldest first.

    Snapshots of several starts are of different processes: they are not compared.
    """
    newest = max((stored.incarnation for stored in documents), default=0)
    found = []
    for stored in documents:
        if stored.incarnation != newest:
            continue
        try:
            body = read_body(stored.document, MemorySnapshot)
        except WireError:
            continue
        found.append((f"{stored.incarnation}/{stored.document.key}", body))
    return sorted(found, key=lambda one: one[1].time)


def _gone(facts: MemoryFacts) -> list[Component]:
    """A sentence where a snapshot of the address is not there: a restart, say, has snapshots of its own."""
    if not any(facts.gone):
        return []
    first, second = facts.gone
    which = "Both snapshots" if first and second else f"The {'first' if first else 'second'} snapshot"
    text = f"{which} that the address names {'are' if first and second else 'is'} no longer here"
    if facts.moments is not None:
        text += "; the oldest and the newest stand in" if first and second else "; another one stands in"
        text += f" {'their' if first and second else 'its'} place"
    return [html.P(f"{text}.", className="ns-small", role="status")]


def _how(parts: Sequence[str]) -> Component:
    """A sentence whose every second part is code."""
    shown = [html.Code(part) if number % 2 else part for number, part in enumerate(parts)]
    return html.P(shown, className="ns-small")


def _section(title: str, children: Sequence[Component]) -> Component:
    return html.Section([html.H2(title), *children], **{"aria-label": title})
