"""`dashboard diff`: where two runs first part, and what they were started with, from their journals alone.

Opens no store and asks no server. Sentences first, then a table; or one JSON object.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from probe.errors import ProbeError
from probe.wire.event_json import jsonable

from ..comparison.facts import Facts, LayoutDifference, compare_facts, compare_layouts
from ..comparison.journal_steps import JournalRank, open_rank, read_steps
from ..comparison.parting import Parting, find_parting
from ..comparison.sentences import layout_sentences, parting_sentences
from ..errors import DashboardError, UnknownRunError
from ..runs import RunFolder, printable, resolve_run


@dataclass(frozen=True, slots=True, kw_only=True)
class RunDifference:
    """Two runs and what is not the same in them."""

    first: RunFolder
    second: RunFolder
    rank: int
    tolerance: float
    parting: Parting
    facts: Facts
    layout: LayoutDifference
    unreadable: tuple[int, int]
    """Records of each that are missing or damaged, up to where the runs part."""

    @property
    def is_equal(self) -> bool:
        """Whether all numbers that both have are the same, and the models are."""
        return self.parting.is_equal and self.layout.is_equal


def compare_runs(first: str, second: str, *, rank: int, tolerance: float) -> RunDifference:
    """Compare two runs of the spool.

    Args:
        first: RUN as on the command line: a folder, an id, a unique prefix of one, or a name.
        second: likewise.
        rank: number of the rank that is compared.
        tolerance: relative difference up to which two numbers are the same.

    Raises:
        DashboardError: an argument does not name one run, both name the same, or one has no such rank.
    """
    one, other = resolve_run(first), resolve_run(second)
    if one.path.resolve() == other.path.resolve():
        raise DashboardError(f"Both arguments name the run {one.run}; give two runs.")
    mine, theirs = _open(one, rank), _open(other, rank)
    parting = find_parting(read_steps(mine), read_steps(theirs), tolerance=tolerance)
    sides = [(each.start, each.facts) for each in (mine, theirs) if each.start is not None]
    return RunDifference(
        first=one,
        second=other,
        rank=rank,
        tolerance=tolerance,
        parting=parting,
        facts=compare_facts(sides) if len(sides) == 2 else Facts(differing=(), equal={}),
        layout=compare_layouts(mine.layout, theirs.layout),
        unreadable=(mine.unreadable, theirs.unreadable),
    )


def _open(run: RunFolder, rank: int) -> JournalRank:
    try:
        found = open_rank(run.path, rank)
    except ProbeError as error:
        raise DashboardError(f"{run.path} cannot be read: {error}") from error
    if not found.writers:
        raise UnknownRunError(f"The run {run.run} has no journal of rank {rank}; choose another with --rank.")
    return found


def text_lines(found: RunDifference) -> Iterator[str]:
    """Sentences that can be read aloud, then the facts that differ, a line each."""
    yield f"First: {_called(found.first)}. Second: {_called(found.second)}."
    yield from map(printable, parting_sentences(found.parting, tolerance=found.tolerance))
    yield from map(printable, layout_sentences(found.layout))
    for which, count in zip(("first", "second"), found.unreadable, strict=True):
        if count:
            yield f"Missing or damaged records of the {which} run's journal: {count:,}."
    yield from _table(found.facts)


def json_text(found: RunDifference) -> str:
    """Return everything as one JSON object; non-finite numbers are strings."""
    parting = found.parting
    document: dict[str, Any] = {
        "v": 1,
        "first": {"run": found.first.run, "name": found.first.name},
        "second": {"run": found.second.run, "name": found.second.name},
        "rank": found.rank,
        "tolerance": found.tolerance,
        "equal": found.is_equal,
        "parting": asdict(parting),
        "model": asdict(found.layout),
        "unreadable": list(found.unreadable),
        "facts": {
            "differing": [asdict(fact) for fact in found.facts.differing],
            "equal": dict(found.facts.equal),
        },
    }
    return json.dumps(jsonable(document), allow_nan=False)


def _called(run: RunFolder) -> str:
    return printable(f"{run.run} ({run.name})" if run.name else run.run)


def _table(facts: Facts) -> Iterator[str]:
    same = ", ".join(f"{count} of {group.lower()}" for group, count in facts.equal.items())
    if not facts.differing:
        yield "Both were started with the same settings."
        return
    yield ""
    rows = [
        (fact.group, fact.name, *(value or "\u2013" for value in fact.values)) for fact in facts.differing
    ]
    shown = [tuple(map(printable, row)) for row in (("", "differs in", "first", "second"), *rows)]
    widths = [min(40, max(len(row[column]) for row in shown)) for column in range(4)]
    group = ""
    for row in shown:
        cells = ("" if row[0] == group else row[0], *row[1:])
        group = row[0]
        yield "  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)).rstrip()
    if same:
        yield f"Equal: {same}."
