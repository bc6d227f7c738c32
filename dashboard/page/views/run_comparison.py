"""What differs between ticked runs, side by side, and where two of them part. Pure; all text stays text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from dash import html
from dash.development.base_component import Component

from ...comparison.facts import Facts, LayoutDifference
from ...comparison.parting import TOLERANCE, Parting
from ...comparison.sentences import layout_sentences, parting_sentences


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedRun:
    """One of them, as the table's head names it."""

    run: str
    name: str

    @property
    def label(self) -> str:
        """Short name with the end of the id, which tells runs of one script apart."""
        return f"{self.name} \u00b7 {self.run[-8:]}"


def run_comparison(
    runs: Sequence[ComparedRun],
    facts: Facts,
    *,
    parting: Parting | None = None,
    layout: LayoutDifference | None = None,
    note: str = "",
) -> list[Component]:
    """Return what stands below the table.

    Args:
        runs: two or more, in the order in which they were ticked.
        facts: what they were started with.
        parting: where the two part; None for more than two.
        layout: how the models of the two differ.
        note: what was not compared, one sentence.
    """
    parts = [] if parting is None else _parting(runs, parting, layout, note)
    return [*parts, *_facts(runs, facts)]


def _parting(
    runs: Sequence[ComparedRun], parting: Parting, layout: LayoutDifference | None, note: str
) -> list[Component]:
    headline, *others = parting_sentences(parting, tolerance=TOLERANCE)
    others += [] if layout is None else list(layout_sentences(layout))
    others += [note] if note else []
    buttons = [] if parting.step is None else [_show_step(run, parting.step) for run in runs]
    found = "equal" if parting.is_equal and (layout is None or layout.is_equal) else "parted"
    return [
        html.H2("Where they differ"),
        html.P(headline, className="ns-runs-headline", **{"data-found": found}),
        *(html.P(sentence) for sentence in others),
        html.P(buttons, className="ns-runs-steps", hidden=not buttons),
    ]


def _show_step(run: ComparedRun, step: int) -> Component:
    return html.Button(
        f"Show step {step:,} of {run.label}",
        className="ns-button",
        **{"data-show-run": run.run, "data-show-step": str(step)},
    )


def _facts(runs: Sequence[ComparedRun], facts: Facts) -> Iterator[Component]:
    yield html.H2("What they were started with")
    if facts.differing:
        head = html.Tr([html.Th("Differs in", scope="col"), *(_head(run) for run in runs)])
        table = html.Table([html.Thead(head), html.Tbody(list(_rows(facts)))], className="ns-facts-table")
        label = {"aria-label": "What the runs were started with"}
        yield html.Div(table, className="ns-runs-scroll", tabIndex="0", role="region", **label)
    equal = ", ".join(f"{count} of {group.lower()}" for group, count in facts.equal.items())
    everything = "" if facts.differing else "Both were started with the same settings. "
    yield html.P(f"{everything}Equal: {equal}." if equal else everything, className="ns-small")


def _head(run: ComparedRun) -> Component:
    return html.Th([html.Span(className="ns-runs-swatch", **{"aria-hidden": "true"}), run.label], scope="col")


def _rows(facts: Facts) -> Iterator[Component]:
    group = ""
    for fact in facts.differing:
        if fact.group != group:
            group = fact.group
            across = {"colSpan": len(fact.values) + 1, "scope": "colgroup"}
            yield html.Tr(html.Th(group, **across), className="ns-facts-group")
        cells = [
            html.Td(value) if value is not None else html.Td("\u2013", title="not given")
            for value in fact.values
        ]
        yield html.Tr([html.Th(fact.name, scope="row"), *cells])
