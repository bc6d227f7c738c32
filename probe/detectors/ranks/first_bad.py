"""Finds the rank on which NaN or Inf began, of those that an all-reduce has spread it to. Numbers only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from ...wire import Event
from .lineup import Reached
from .rank_texts import name_ranks
from .replicas import RankFinding

SPREAD_STEPS: Final = 2
"""A rank that got it from another shows it at the same step, or after the update that it spoiled."""
_LARGEST_SHARE: Final = 0.5
"""Where more of the ranks are equally early, it began nowhere in particular."""
_MOST_TOLD: Final = 8


@dataclass(frozen=True, slots=True)
class _Report:
    """The earliest evidence of one rank."""

    order: tuple[int, int]
    """Step, and how near to the cause the evidence is; the smallest is first."""
    event: Event

    @property
    def step(self) -> int:
        return self.order[0]

    @property
    def kind(self) -> str:
        return self.event.kind


class FirstBadRank:
    """Gathers the first non-finite events of each rank of one model until all ranks have shown theirs."""

    def __init__(self) -> None:
        self._reached = Reached()
        self._reports: dict[int, _Report] = {}
        self._is_due = self._is_over = False

    def reach(self, rank: int, step: int) -> None:
        """A rank has finished a step."""
        self._reached.reach(rank, step)

    def leave(self, rank: int) -> None:
        """A rank is over: nobody waits for it any more."""
        self._reached.leave(rank)

    def report(self, event: Event) -> None:
        """A rank tells of NaN or Inf."""
        if not event.kind.startswith("nonfinite_") or event.severity == "info" or self._is_over:
            return
        report = _Report((event.step, nearness(event)), event)
        known = self._reports.get(event.rank)
        if known is None or report.order < known.order or event.id == known.event.id:
            self._reports[event.rank] = report

    def findings(self, *, everything: bool = False) -> list[RankFinding]:
        """Return the finding, once: when every rank had its time to show what it got.

        Args:
            everything: nothing more will come.
        """
        if self._is_over or not self._reports:
            return []
        first = min(report.order for report in self._reports.values())
        # A rank's events and its steps are read one after the other: one more look, to have both.
        was_due, self._is_due = self._is_due, self._reached.by_all() >= first[0] + SPREAD_STEPS
        if not (everything or (was_due and self._is_due)):
            return []
        self._is_over = True
        return self._decide(first)

    def _decide(self, first: tuple[int, int]) -> list[RankFinding]:
        ranks = len(self._reached.ranks | self._reports.keys())
        hit = {rank: r for rank, r in self._reports.items() if r.step <= first[0] + SPREAD_STEPS}
        guilty = sorted(rank for rank, report in hit.items() if report.order == first)
        if len(hit) < 2 or len(guilty) > _LARGEST_SHARE * ranks:
            return []
        others = sorted(hit.keys() - set(guilty), key=lambda rank: (*hit[rank].order, rank))
        if not others:
            return []
        report = hit[guilty[0]]
        return [
            RankFinding(
                kind="rank_divergence",
                severity="critical",
                rank=guilty[0],
                subject="non-finite values",
                source=report.event,
                advice="non-finite values",
                step=report.step,
                time=report.event.time,
                message=_message(guilty, others, hit, ranks),
                value=float(len(hit)),
                baseline={"ranks": float(ranks), "ranks_at_first": float(len(guilty))},
                affected=tuple(f"rank {rank}" for rank in [*guilty, *others]),
                last_step=max(one.step for one in hit.values()),
                ended=True,
            )
        ]


def nearness(event: Event) -> int:
    """How near to the cause the evidence is; lower is nearer."""
    if event.kind == "nonfinite_input" or (event.origin is not None and event.origin.phase == "input"):
        return 0
    if event.kind in ("nonfinite_activation", "nonfinite_loss"):
        return 1
    if event.kind == "nonfinite_gradient" and event.origin is not None:
        # A replay without the other ranks has found it here.
        return 1
    return 2 if event.kind == "nonfinite_gradient" else 3


def _message(guilty: Sequence[int], others: Sequence[int], hit: dict[int, _Report], ranks: int) -> str:
    first = hit[guilty[0]]
    went = f"{name_ranks(guilty).capitalize()} went bad first, {first.kind} at step {first.step}"
    lines = [
        f"{went}: {len(hit)} of {ranks} ranks have non-finite values since",
        f"Rank {guilty[0]}: {first.event.message.partition(chr(10))[0]}",
    ]
    for rank in others[:_MOST_TOLD]:
        lines.append(f"Then rank {rank}: {hit[rank].kind} at step {hit[rank].step}.")
    if len(others) > _MOST_TOLD:
        lines.append(f"And {len(others) - _MOST_TOLD} more ranks.")
    return "\n".join(lines)
