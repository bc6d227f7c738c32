"""`dashboard diff`: where two runs first part, and what they were started with, from their journals alone.

Opens no store and asks no server. Sentences first, then a table; or one JSON object.
"""

from __future__ import annotations

import argparse
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
from ..runs import RunFolder, lacks_records, no_such_member, printable, resolve_run
from .diff_ops import compare_ops


@dataclass(frozen=True, slots=True, kw_only=True)
class RunDifference:
    """Two runs and what is not the same in them."""

    first: RunFolder
    second: RunFolder
    rank: int
    members: tuple[int | None, int | None]
    """Which model of each; None of a run that has one."""
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


def compare_asked(arguments: argparse.Namespace) -> RunDifference:
    """Compare what the command's line names; with `--op` this process becomes the one that does so.

    Raises:
        DashboardError: what it names cannot be compared.
    """
    if arguments.op:
        if arguments.member:
            raise DashboardError("`--member` is not for `diff --op`; give the step of a bundle with `--step`")
        compare_ops(
            arguments.first,
            arguments.second,
            entries=arguments.entry,
            rank=arguments.rank,
            step=arguments.step,
            as_json=arguments.json,
        )
    elif arguments.entry or arguments.step is not None:
        raise DashboardError("--entry and --step are for diff --op")
    if len(arguments.member) > 2:
        raise DashboardError("`--member` is given once for both runs, or twice, for the first and the second")
    members = arguments.member or [0]
    return compare_runs(
        arguments.first,
        arguments.second,
        rank=arguments.rank,
        tolerance=arguments.tolerance,
        members=(members[0], members[-1]),
    )


def compare_runs(
    first: str, second: str, *, rank: int, tolerance: float, members: tuple[int, int] = (0, 0)
) -> RunDifference:
    """Compare two runs of the spool, or two models that one run made one after the other.

    Args:
        first: RUN as on the command line: a folder, an id, a unique prefix of one, or a name.
        second: likewise.
        rank: number of the rank that is compared.
        tolerance: relative difference up to which two numbers are the same.
        members: which model of each is compared.

    Raises:
        DashboardError: an argument does not name one run, both name the same, or one has no such rank or
            model.
    """
    one, other = resolve_run(first), resolve_run(second)
    if one.path.resolve() == other.path.resolve() and members[0] == members[1]:
        raise DashboardError(
            f"Both arguments name the run {one.run}; give two runs, or `--member` twice for "
            "two of its models."
        )
    mine, theirs = _open(one, rank, members[0]), _open(other, rank, members[1])
    parting = find_parting(read_steps(mine), read_steps(theirs), tolerance=tolerance)
    sides = [(each.start, each.facts) for each in (mine, theirs) if each.start is not None]
    return RunDifference(
        first=one,
        second=other,
        rank=rank,
        members=(_member_of(mine), _member_of(theirs)),
        tolerance=tolerance,
        parting=parting,
        facts=compare_facts(sides) if len(sides) == 2 else Facts(differing=(), equal={}),
        layout=compare_layouts(mine.layout, theirs.layout),
        unreadable=(mine.unreadable, theirs.unreadable),
    )


def _open(run: RunFolder, rank: int, member: int) -> JournalRank:
    try:
        found = open_rank(run.path, rank, member)
    except ProbeError as error:
        raise DashboardError(f"{run.path} cannot be read: {error}") from error
    if not found.writers:
        raise UnknownRunError(f"The run {run.run} has no journal of rank {rank}; choose another with --rank.")
    if member >= found.models:
        raise no_such_member(run.run, member, found.models)
    return found


def _member_of(found: JournalRank) -> int | None:
    return found.member if found.models > 1 else None


def text_lines(found: RunDifference) -> Iterator[str]:
    """Sentences that can be read aloud, then the facts that differ, a line each."""
    first, second = map(_called, (found.first, found.second), found.members)
    yield f"First: {first}. Second: {second}."
    yield from map(printable, parting_sentences(found.parting, tolerance=found.tolerance))
    yield from map(printable, layout_sentences(found.layout))
    for which, count in zip(("first", "second"), found.unreadable, strict=True):
        if count:
            yield f"The journal of the {which} run {lacks_records(count)}."
    yield from _table(found.facts)


def json_text(found: RunDifference) -> str:
    """Return everything as one JSON object; non-finite numbers are strings."""
    parting = found.parting
    document: dict[str, Any] = {
        "v": 1,
        "first": _named(found.first, found.members[0]),
        "second": _named(found.second, found.members[1]),
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


def _named(run: RunFolder, member: int | None) -> dict[str, Any]:
    named = {"run": run.run, "name": run.name}
    return named if member is None else named | {"member": member}


def _called(run: RunFolder, member: int | None) -> str:
    model = "" if member is None else f", model {member + 1:,}"
    return printable((f"{run.run} ({run.name})" if run.name else run.run) + model)


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
