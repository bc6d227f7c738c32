"""Which rank stands out, said in words: NaN first, slower than the others, far from the median. Pure.

The live feed sends the sentences; `assets/ns_58_ranks_rows.js` shows them above the matrix.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
import numpy.typing as npt

from probe.detectors.ranks.first_bad import nearness
from probe.detectors.ranks.pace import LAST_SHARE, LATE_S, LATE_SHARE
from probe.detectors.ranks.rank_texts import name_ranks
from probe.wire import Event
from probe.wire.causes import of_newest_start

from .rank_statistics import Floats, RankStatistic, percentiles

LEAST_STEPS: Final = 16
"""Steps on which a rank is called slow, at least."""
_SPREADS: Final = 6.0
"""A rank stands out by so many times the usual distance of a rank from the median ..."""
_LEAST_RATIO: Final = 1.5
"""... and by this ratio at least, where distances are ratios."""
_NEWEST_COLUMNS: Final = 16
"""Columns, the newest on screen, in which it does so at the median."""
_GAUSSIAN: Final = 1.4826
"""Standard deviation of normal noise over its median absolute deviation."""
_LARGEST_SHARE: Final = 0.5
"""Where more of the ranks are equally early, it began nowhere in particular: as the probe judges it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankRemark:
    """One sentence."""

    severity: Literal["critical", "warning", "none"]
    text: str
    ranks: tuple[int, ...] = ()
    """Ranks that it is about."""
    step: int | None = None
    """Where NaN or Inf began."""
    kind: Literal["bad", "slow", "far", "none"] = "none"


def first_bad(events: Sequence[Event]) -> RankRemark | None:
    """Return where NaN or Inf began, by the events of each rank's newest start; None where none has any.

    First is the earliest step, then what is nearest to the cause: a rank's own loss comes before the averaged
    gradient by which others got it.
    """
    reports: dict[int, tuple[int, int]] = {}
    words: dict[int, str] = {}
    for event in of_newest_start(events):
        if event.kind.startswith("nonfinite_") and event.severity != "info":
            order = (event.step, nearness(event))
            if event.rank not in reports or order < reports[event.rank]:
                reports[event.rank], words[event.rank] = order, _word(event)
    if not reports:
        return None
    first = min(reports.values())
    guilty = sorted(rank for rank, order in reports.items() if order == first)
    others = [order for rank, order in reports.items() if rank not in guilty]
    word = words[guilty[0]]
    if len(guilty) > 1 and (not others or len(guilty) > _LARGEST_SHARE * len(reports)):
        text = f"{len(guilty)} ranks went {word} at step {first[0]:,}: which was first is not recorded"
        return RankRemark(severity="critical", text=text, step=first[0], kind="bad")
    who = name_ranks(guilty)
    text = f"{who[0].upper()}{who[1:]} went {word} first at step {first[0]:,}, {_lead(first, others)}"
    return RankRemark(severity="critical", text=text, ranks=tuple(guilty), step=first[0], kind="bad")


def _word(event: Event) -> str:
    return next((word for word in ("NaN", "Inf") if word in event.message), "NaN or Inf")


def _lead(first: tuple[int, int], others: Sequence[tuple[int, int]]) -> str:
    if not others:
        return "and no other rank has"
    ahead = min(others)[0] - first[0]
    if ahead == 0:
        return "its own loss or input, before the gradient of any other"
    return f"{ahead:,} step{'' if ahead == 1 else 's'} before any other"


def first_bad_on_screen(
    shown: Floats, ranks: Sequence[int], steps: npt.NDArray[np.int64], *, steps_per_column: int, label: str
) -> RankRemark | None:
    """Return where a statistic is NaN or Inf first, of what is on screen: for runs without such events."""
    bad = np.isnan(shown) | (shown == np.inf)
    if not bad.any():
        return None
    rows = np.flatnonzero(bad.any(axis=1))
    columns = bad[rows].argmax(axis=1)
    first = int(columns.min())
    guilty = [
        ranks[row] for row, column in zip(rows.tolist(), columns.tolist(), strict=True) if column == first
    ]
    step = int(steps[first])
    when = (
        f"step {step:,}"
        if steps_per_column == 1
        else f"one of steps {step:,} to {step + steps_per_column - 1:,}"
    )
    if len(guilty) > _LARGEST_SHARE * len(ranks):
        text = f"{label} is NaN or Inf on {len(guilty)} ranks from {when} on: which was first is not recorded"
        return RankRemark(severity="critical", text=text, step=step, kind="bad")
    who = name_ranks(guilty)
    text = f"{label} is NaN or Inf on {who} first, at {when}"
    return RankRemark(severity="critical", text=text, ranks=tuple(guilty), step=step, kind="bad")


def straggler(own: Floats, step: Floats, ranks: Sequence[int], *, what: str) -> RankRemark | None:
    """Return the rank that is slower than the others beyond doubt; None where none is.

    The rule is that of the probe's event (`probe.detectors.ranks.pace`): later than the others by 20 % of a
    step and 5 ms, the last one at 80 % of the steps, and by more than four times the spread of the others.

    Args:
        own: (ranks, steps) seconds that a rank takes by itself, NaN where unknown.
        step: (ranks, steps) seconds of whole steps.
        ranks: Their numbers.
        what: What `own` is, for the sentence.
    """
    measured = np.flatnonzero(np.isfinite(own).sum(axis=1) >= LEAST_STEPS)
    if len(measured) < 2:
        return None
    taken = own[measured]
    typical = np.array(percentiles(taken, 50), dtype=np.float64)
    steps_s = [value for value in percentiles(step, 50) if value is not None]
    step_s = float(np.median(steps_s)) if steps_s else float(np.median(typical))
    slowest = int(np.argmax(typical))
    others = np.delete(typical, slowest)
    late = float(typical[slowest] - np.median(others))
    spread = _GAUSSIAN * float(np.median(np.abs(others - np.median(others))))
    if late <= max(LATE_SHARE * step_s, LATE_S, 4 * spread):
        return None
    common = np.isfinite(taken).all(axis=0)
    if common.sum() < LEAST_STEPS:
        return None
    rivals = np.delete(taken, slowest, axis=0)[:, common].max(axis=0)
    share = float(np.mean(taken[slowest][common] > rivals))
    if share < LAST_SHARE:
        return None
    rank = ranks[int(measured[slowest])]
    text = (
        f"Rank {rank} is slow: {what} takes {_ms(typical[slowest])}, of the others "
        f"{_ms(float(np.median(others)))}, and is the longest at {share * 100:.0f} % of "
        f"{int(common.sum())} steps"
    )
    return RankRemark(severity="warning", text=text, ranks=(rank,), kind="slow")


def _ms(seconds: float) -> str:
    return f"{seconds:.3g} s" if seconds >= 1 else f"{seconds * 1e3:.3g} ms"


def far_from_median(distance: Floats, ranks: Sequence[int], statistic: RankStatistic) -> RankRemark | None:
    """Return the rank that is far from the median in the newest columns, beyond what ranks usually are."""
    newest = np.abs(distance[:, -_NEWEST_COLUMNS:])
    own = np.array([np.nan if each is None else each for each in percentiles(newest, 50)])
    known = np.flatnonzero(np.isfinite(own))
    if len(known) < 3:
        return None
    worst = int(known[np.argmax(own[known])])
    usual = float(np.median(np.delete(own[known], np.argmax(own[known]))))
    least = np.log2(_LEAST_RATIO) if statistic.scale == "ratio" else 0.0
    if own[worst] <= max(least, _SPREADS * usual) or own[worst] == 0:
        return None
    middle = percentiles(distance[worst : worst + 1, -_NEWEST_COLUMNS:], 50)[0]
    assert middle is not None
    far = ratio_text(2.0**middle) if statistic.scale == "ratio" else f"{middle:+.3g} from"
    label = statistic.label.lower()
    text = f"Rank {ranks[worst]}: {label} {far} the median over ranks in the newest steps on screen"
    return RankRemark(severity="warning", text=text, ranks=(ranks[worst],), kind="far")


def ratio_text(ratio: float) -> str:
    """``×6.1``; below 1 ``÷6.1``."""
    return f"\u00d7{ratio:.3g}" if ratio >= 1 else f"\u00f7{1 / ratio:.3g}"


def missing_ranks(ranks: Sequence[int], present: Sequence[bool]) -> RankRemark | None:
    """Return which ranks have sent nothing."""
    absent = [rank for rank, is_there in zip(ranks, present, strict=True) if not is_there]
    if not absent:
        return None
    who = name_ranks(absent)
    verb = "has" if len(absent) == 1 else "have"
    text = f"{who[0].upper()}{who[1:]} {verb} sent nothing"
    return RankRemark(severity="none", text=text, ranks=tuple(absent))


def remarks(found: Sequence[RankRemark | None]) -> list[RankRemark]:
    """Return what there is to say, the gravest first; that no rank stands out where nothing is."""
    said = [each for each in found if each is not None]
    if not any(each.severity != "none" for each in said):
        said.insert(0, RankRemark(severity="none", text="No rank is unusual"))
    return said
