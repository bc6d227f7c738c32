"""Removes raw rows that have become old: whole blocks of a run, once all of its ranks are far beyond them.

A rule that is applied again and again, by any process: a server of 18.16 that starts has parts again that
were dropped shortly before. In order: ranges around events are noted, floors raised, the rows there copied,
blocks dropped; wherever it ends, reads show the same. Below a floor, raw rows count in noted ranges alone.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from ..pyramid import FACTOR, Ranges, join_ranges
from ..retention import EVENT_STEPS
from ..timelines import LAYER, MODULE, PARAMETER, SCALAR
from . import schema
from .connection import Connections
from .rows import REWRITTEN, REWRITTEN_EVENT, WHOLE, ClickRows
from .said_rows import text
from .schema import now_ns, number_of

QUIET_S: Final = 60
"""A run is left alone while somebody writes to its blocks below the floor, as when it was resumed."""
_KINDS: Final = (SCALAR, LAYER, PARAMETER, MODULE)


@dataclass(slots=True)
class _Timeline:
    number: int
    rank: int
    is_scalar: bool
    first_step: int
    max_step: int
    floor: int


@dataclass(slots=True)
class _Run:
    name: str
    timelines: list[_Timeline] = field(default_factory=list)


class Retention:
    """Applies the rule; not thread-safe.

    Args:
        database: Whose rows.
        raw_steps: Newest steps of a rank that are kept one by one.
        everywhere: All servers, any of which may have events of a rank; None: this is the only one.
    """

    def __init__(
        self, database: Connections, *, raw_steps: int, everywhere: Sequence[Connections] | None = None
    ) -> None:
        self._database, self._raw_steps = database, raw_steps
        self._everywhere = everywhere
        self._rows = ClickRows(database)

    def apply(
        self, names: Mapping[int, tuple[str, int, bool]], over: Collection[tuple[str, int]] = ()
    ) -> None:
        """Look at all runs.

        Args:
            names: Timeline -> its run, its rank, and whether it has scalars, of all that lie here.
            over: Run and rank of those that have ended, or have said nothing for long: no run waits for them.
        """
        blocks = self._blocks()
        for number, run in self._runs(names).items():
            if found := blocks.get(number):
                self._age(number, run, found, {rank for name, rank in over if name == run.name})

    def clear(self, run: str, blocks: Iterable[int]) -> None:
        """Drop what came back of blocks below the floor, before a run that was resumed writes to them."""
        number = number_of("run", run)
        ranges = self._noted([number])
        written = {block for notes in ranges.values() for block in _blocks_of(notes, (REWRITTEN,))}
        there = self._blocks().get(number, {})
        self._drop(number, [block for block in blocks if block in there and block not in written], ranges)

    def note(self, run: str, timeline: int, ranges: Ranges, kind: int) -> None:
        """Note where raw rows exist below the floor, or with `GONE` that they do not any more."""
        self._put(number_of("run", run), [(timeline, first, end, kind) for first, end in ranges])

    # -- one run

    def _age(self, number: int, run: _Run, blocks: Mapping[int, bool], over: Collection[int]) -> None:
        size = schema.BLOCK_STEPS
        reached: dict[int, int] = {}
        for each in run.timelines:
            reached[each.rank] = max(reached.get(each.rank, -1), each.max_step)
        floor = max(each.floor for each in run.timelines)
        going = [step for rank, step in reached.items() if rank not in over]
        target = (min(going or [max(reached.values())]) - self._raw_steps) // size * size
        if not all(is_quiet for block, is_quiet in blocks.items() if (block + 1) * size <= floor):
            return
        notes = self._noted([number])
        # Another layout, or a rank whose records came late, has old steps that nobody has looked at yet.
        late = {each.rank for each in run.timelines if each.floor < floor and each.first_step < floor}
        if target > floor or (target == floor and late and late <= set(over)):
            self._raise_floors(number, run, target, notes)
            floor, notes = target, self._noted([number])
        elif late:
            return
        written = {block for ranges in notes.values() for block in _blocks_of(ranges, (REWRITTEN,))}
        old = [block for block in blocks if (block + 1) * size <= floor and block not in written]
        self._drop(number, old, notes)

    def _raise_floors(
        self, number: int, run: _Run, target: int, notes: Mapping[int, Sequence[tuple[int, int, int]]]
    ) -> None:
        windows = self._windows(run.name)
        rows: list[tuple[int, int, int, int]] = []
        gone: list[tuple[int, int, int, int]] = []
        for each in run.timelines:
            near = windows.get(each.rank, [])
            for first, end, kind in notes.get(each.number, []):
                if kind == REWRITTEN:
                    gone.append((each.number, first, end, schema.GONE))
                    rows += [(each.number, *part, REWRITTEN_EVENT) for part in _common(near, [(first, end)])]
            if each.floor < target:
                # The newest steps of a timeline that has ended are pooled by nothing yet.
                tail = [((each.max_step + 1) // FACTOR * FACTOR, (each.max_step // FACTOR + 1) * FACTOR)]
                kept = join_ranges(sorted([*near, *(part for part in tail if part[0] < part[1])]))
                rows += [(each.number, *part, WHOLE) for part in _common(kept, [(each.floor, target)])]
        replaced = {row[:3] for row in rows}
        self._put(number, [*rows, *(row for row in gone if row[:3] not in replaced)])
        floors = [(number, each.number, target) for each in run.timelines if each.floor < target]
        self._database.run_rows("floors", ("run", "timeline", "raw_floor"), floors)

    def _drop(
        self, number: int, blocks: Sequence[int], notes: Mapping[int, Sequence[tuple[int, int, int]]]
    ) -> None:
        """Drop blocks, but first copy what a run that was resumed has written around events."""
        if not blocks:
            return
        size = schema.BLOCK_STEPS
        spans = [(block * size, (block + 1) * size) for block in sorted(blocks)]
        kept = {
            timeline: _common([(first, end) for first, end, kind in ranges if kind != REWRITTEN], spans)
            for timeline, ranges in notes.items()
        }
        self._copy(number, kept)
        self._database.secure()
        for kind in _KINDS:
            for block in blocks:
                self._database.run(f"ALTER TABLE {kind}_raw DROP PARTITION ({number}, {block})")

    def _copy(self, number: int, ranges: Mapping[int, Sequence[tuple[int, int]]]) -> None:
        conditions = [
            f"(timeline = {timeline} AND step >= {first} AND step < {end})"
            for timeline, parts in ranges.items()
            for first, end in parts
        ]
        for start in range(0, len(conditions), 200):
            chosen = " OR ".join(conditions[start : start + 200])
            for kind in _KINDS:
                self._database.run(
                    f"INSERT INTO {kind}_kept SELECT * FROM {kind}_raw WHERE run = {number} AND ({chosen})"
                )

    def _put(self, number: int, rows: Sequence[tuple[int, int, int, int]]) -> None:
        names = ("run", "timeline", "first_step", "end_step", "kind", "version")
        version = now_ns()
        self._database.run_rows("kept", names, [(number, *row, version) for row in rows])

    # -- what is there

    def _blocks(self) -> dict[int, dict[int, bool]]:
        """Return run -> its blocks that have raw rows, and whether nobody has written to them lately."""
        listed = ", ".join(f"'{kind}_raw'" for kind in _KINDS)
        query = f"""SELECT partition, max(modification_time) + {QUIET_S} <= now() FROM system.parts
            WHERE active AND database = %(database)s AND table IN ({listed}) GROUP BY partition"""
        found: dict[int, dict[int, bool]] = defaultdict(dict)
        values = {"database": self._database.address.database}
        for partition, is_quiet in self._database.rows(query, values):
            run, block = text(partition).strip("()").split(",")
            found[int(run)][int(block)] = bool(is_quiet)
        return found

    def _runs(self, names: Mapping[int, tuple[str, int, bool]]) -> dict[int, _Run]:
        """Return the runs of which every timeline is known."""
        floors = dict(self._database.rows("SELECT timeline, max(raw_floor) FROM floors GROUP BY timeline"))
        query = """SELECT run, timeline, min(first_step), max(max_step) FROM progress
            GROUP BY run, timeline"""
        runs: dict[int, _Run] = {}
        unknown: set[int] = set()
        for number, timeline, first, last in self._database.rows(query):
            if timeline not in names:
                unknown.add(number)
                continue
            name, rank, is_scalar = names[timeline]
            one = _Timeline(timeline, rank, is_scalar, first, last, floors.get(timeline, 0))
            runs.setdefault(number, _Run(name)).timelines.append(one)
        return {number: run for number, run in runs.items() if number not in unknown}

    def _noted(self, runs: Sequence[int]) -> dict[int, list[tuple[int, int, int]]]:
        listed = ", ".join(map(str, runs))
        return self._rows.noted(f"run IN ({listed})")

    def _windows(self, run: str) -> dict[int, Ranges]:
        """Return rank -> where its events are, in whole buckets."""
        query = "SELECT DISTINCT rank, step FROM events WHERE run = %(run)s ORDER BY rank, step"
        found: dict[int, list[tuple[int, int]]] = defaultdict(list)
        servers = [self._database] if self._everywhere is None else self._everywhere
        said = {row for server in servers for row in server.rows(query, {"run": run})}
        for rank, step in sorted(said):
            low, high = (step - EVENT_STEPS) // FACTOR, (step + EVENT_STEPS) // FACTOR + 1
            found[rank].append((low * FACTOR, high * FACTOR))
        return {rank: join_ranges(ranges) for rank, ranges in found.items()}


def blocks_of(steps: Sequence[int] | np.ndarray) -> list[int]:
    """Return the blocks that have these steps."""
    return [int(block) for block in np.unique(np.asarray(steps, np.int64) // schema.BLOCK_STEPS)]


def _blocks_of(notes: Iterable[tuple[int, int, int]], kinds: Sequence[int]) -> set[int]:
    size = schema.BLOCK_STEPS
    return {
        block
        for first, end, kind in notes
        if kind in kinds
        for block in range(first // size, (end - 1) // size + 1)
    }


def _common(one: Sequence[tuple[int, int]], other: Sequence[tuple[int, int]]) -> Ranges:
    """Return what both of them have."""
    return [
        (max(first, low), min(end, high))
        for first, end in other
        for low, high in one
        if max(first, low) < min(end, high)
    ]
