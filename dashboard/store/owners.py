"""Which start of a rank a step belongs to: the newest one that has a frame of it.

What older starts have measured there is not shown, also of series that the newest has nothing of at that
step: else its line would jump to theirs and back. Used inside the commit's transaction, and by reads for what
is not yet committed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import duckdb
import numpy as np
import numpy.typing as npt

from .pyramid import Steps


class OwnerRows(Protocol):
    """The part of `Rows` that is asked here."""

    def owners(
        self, timeline: int, kinds: Sequence[str], *, low: int, high: int
    ) -> tuple[Steps, npt.NDArray[np.int64]]:
        """See `Rows.owners`."""
        ...


@dataclass(frozen=True, slots=True)
class Owners:
    """Steps that several starts may have."""

    step: Steps
    """Distinct, ascending."""
    incarnation: Steps

    def keeps(self, step: Steps, incarnation: Steps) -> npt.NDArray[np.bool_]:
        """Whether each row is shown; pooled ones, of incarnation -1, are."""
        place = np.minimum(np.searchsorted(self.step, step), len(self.step) - 1)
        is_older = (self.step[place] == step) & (incarnation < self.incarnation[place])
        kept: npt.NDArray[np.bool_] = ~is_older | (incarnation < 0)
        return kept


def read_owners(
    rows: OwnerRows,
    timeline: int,
    kinds: Sequence[str],
    blocks: Sequence[tuple[int, Steps]],
    *,
    next_step: int,
) -> Owners | None:
    """Return to whom the uncommitted steps belong; None where no step has come twice.

    Args:
        rows: of the read's snapshot.
        timeline: whose rows.
        kinds: prefixes of the tables that hold them.
        blocks: incarnation and steps of uncommitted frames.
        next_step: one more than the largest committed step.
    """
    steps = np.concatenate([np.empty(0, np.int64), *(part for _, part in blocks)])
    if not len(steps) or (len({number for number, _ in blocks}) == 1 and int(steps.min()) >= next_step):
        return None
    numbers = np.repeat(
        np.array([number for number, _ in blocks], np.int64), [len(part) for _, part in blocks]
    )
    low, high = int(steps.min()), min(int(steps.max()), next_step - 1)
    if low <= high:
        committed, newest = rows.owners(timeline, kinds, low=low, high=high)
        steps, numbers = np.concatenate([steps, committed]), np.concatenate([numbers, newest])
    order = np.lexsort((numbers, steps))
    steps, numbers = steps[order], numbers[order]
    last = np.r_[steps[1:] != steps[:-1], True]
    return Owners(steps[last], numbers[last])


def supersede_older(
    database: duckdb.DuckDBPyConnection, timeline: int, kinds: Sequence[str], *, low: int, high: int
) -> None:
    """Of the steps `low` to `high` leave the rows of the start that each belongs to."""
    for kind in kinds:
        database.execute(
            f"""UPDATE {kind}_raw AS row SET superseded = true FROM ({newest_query(kinds)}) AS owner
            WHERE row.timeline = $timeline AND row.step = owner.step AND row.incarnation < owner.newest
            AND NOT row.superseded""",
            {"timeline": timeline, "low": low, "high": high},
        )


def newest_query(kinds: Sequence[str]) -> str:
    """The query of each step's newest incarnation."""
    rows = " UNION ALL ".join(
        f"SELECT step, incarnation FROM {kind}_raw WHERE timeline = $timeline AND step BETWEEN $low AND $high"
        for kind in kinds
    )
    return f"SELECT step, max(incarnation) AS newest FROM ({rows}) GROUP BY step"
