"""Which features to measure more rarely, or again more often, so that the probe keeps to its limit. Pure.

Called by the budget with what each measurement costs. Works on a projection, so that the effect of a change
is known before it is made: own time = what every step takes + the sum of cost / period over the features.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

import msgspec

from ..settings.levels import LABELS

TRIPWIRE: Final = "tripwire"
"""Stands for what no switch turns off: the check of every step, the hooks, the frame."""
AIM: Final = 0.85
"""Tightening stops below this share of the limit, so that noise does not take it over the limit again."""
ROOM: Final = 0.7
"""Loosening must stay below this share of the limit; the distance to `AIM` keeps it from going to and fro."""
MAX_STRETCH: Final = 64
"""A period grows to this many times the wanted one; then the feature is dropped."""
_NEGLIGIBLE: Final = 0.03
"""A feature that takes less than this share of what the limit allows is not worth touching."""
_GRADIENTS: Final = "gradients"


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """What training and the probe take, in nanoseconds of a typical step."""

    training_ns: float
    """The step without the probe."""
    base_ns: float
    """The probe's own time that no feature accounts for: the tripwire, the hooks, the frame."""
    costs_ns: Mapping[str, float]
    """What one measurement of each feature takes; of those not seen yet there is none."""

    def own_ns(self, periods: Mapping[str, int]) -> float:
        """The probe's own time in a step, sampled features spread over their periods."""
        return self.base_ns + sum(self.share_ns(name, periods) for name in periods)

    def share_ns(self, name: str, periods: Mapping[str, int]) -> float:
        """What a feature takes of a step, spread over its period."""
        period = periods[name]
        return self.costs_ns.get(name, 0.0) / period if period else 0.0

    def fraction(self, periods: Mapping[str, int]) -> float:
        """The probe's own time as a fraction (0-1) of the step that has it."""
        own = self.own_ns(periods)
        step = self.training_ns + own
        return own / step if step > 0 else 0.0


def tighten(
    load: Load, periods: Mapping[str, int], wanted: Mapping[str, int], *, limit: float
) -> dict[str, int]:
    """Return periods with which the probe takes at most `AIM` of the limit, or as near as it can get.

    Doubles the period of the dearest feature until that suffices; features at `MAX_STRETCH` are dropped,
    dearest first; the full gradient statistics are sampled last, and never dropped.

    Args:
        load: what is measured costs.
        periods: as they are, 0 for features that are off.
        wanted: as level and switches ask for.
        limit: largest share of a step, as a fraction.
    """
    chosen = dict(periods)
    least_ns = _NEGLIGIBLE * limit * load.training_ns
    while load.fraction(chosen) > AIM * limit:
        worth = [name for name in chosen if load.share_ns(name, chosen) > least_ns]
        others = [name for name in worth if name != _GRADIENTS]
        stretchable = [name for name in others if chosen[name] * 2 <= wanted[name] * MAX_STRETCH]
        if stretchable:
            chosen[_dearest(stretchable, load, chosen)] *= 2
        elif others:
            chosen[_dearest(others, load, chosen)] = 0
        elif _GRADIENTS in worth and chosen[_GRADIENTS] * 2 <= wanted[_GRADIENTS] * MAX_STRETCH:
            chosen[_GRADIENTS] *= 2
        else:
            break
    return chosen


def loosen(
    load: Load, periods: Mapping[str, int], wanted: Mapping[str, int], *, limit: float
) -> dict[str, int]:
    """Return periods nearer to the wanted ones, as far as the probe then takes at most `ROOM` of the limit.

    Args:
        load: what is measured costs.
        periods: as they are.
        wanted: as level and switches ask for.
        limit: largest share of a step, as a fraction.
    """
    chosen = dict(periods)
    found = True
    while found:
        found = False
        for name, period in _steps_back(chosen, wanted):
            candidate = {**chosen, name: period}
            if load.fraction(candidate) <= ROOM * limit:
                chosen, found = candidate, True
                break
    return chosen


def _dearest(names: list[str], load: Load, periods: Mapping[str, int]) -> str:
    return max(names, key=lambda name: load.share_ns(name, periods))


def _steps_back(periods: Mapping[str, int], wanted: Mapping[str, int]) -> Iterator[tuple[str, int]]:
    """Single steps towards what is wanted: gradients, then what was dropped, then the most stretched."""
    throttled = [name for name in periods if periods[name] != wanted[name] and wanted[name]]
    dropped = [name for name in throttled if not periods[name]]
    stretched = [name for name in throttled if periods[name]]
    stretched.sort(key=lambda name: (name != _GRADIENTS, -periods[name] / wanted[name]))
    if stretched and stretched[0] == _GRADIENTS:
        yield _GRADIENTS, periods[_GRADIENTS] // 2
    yield from ((name, wanted[name] * MAX_STRETCH) for name in dropped)
    yield from ((name, periods[name] // 2) for name in stretched if name != _GRADIENTS)


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """One decision of the budget: what a `throttled` event says. Its severity is "info"."""

    feature: str
    """Of `levels.FEATURES`, or `TRIPWIRE`: nothing is left to be measured more rarely."""
    old: int
    """Period before, in steps; 0 is never."""
    new: int
    fraction: float
    """What the probe took of the step, as a fraction: the event's value; `limit` is its threshold."""
    limit: float
    cost_ns: float
    """What one measurement takes."""
    step_ns: float
    """What the typical step took."""

    @property
    def is_looser(self) -> bool:
        """Whether the feature is measured more often than before."""
        return self.new > 0 and (self.old == 0 or self.new < self.old)

    @property
    def message(self) -> str:
        """First line: what, how often, and why with numbers; then what one measurement takes, what to do."""
        share = f"{self.fraction * 100:.2g} % of the step, the limit is {self.limit * 100:g} %"
        cost = f"{_milliseconds(self.cost_ns)} of a step of {_milliseconds(self.step_ns)}"
        if self.feature == TRIPWIRE:
            return (
                f"The probe takes {share}: its work at every step takes {cost}\n"
                "This cannot be reduced further; it is normal for short steps. Raise overhead_limit, or make "
                "each step do more."
            )
        label = LABELS[self.feature]
        reason = f"the probe {'takes' if self.is_looser else 'took'} {share}"
        lines = [f"{label} are {_how_often(self.old, self.new)}: {reason}", f"One measurement takes {cost}."]
        if self.feature == _GRADIENTS:
            lines.append("The check of every step for NaN and Inf goes on.")
        if not self.is_looser:
            lines.append(
                "overhead_limit sets the limit (0: none); features={...} says what you can do without."
            )
        return "\n".join(lines)


def _how_often(old: int, new: int) -> str:
    if not new:
        return f"no longer measured ({_every(old)} before)"
    if not old:
        return f"measured {_every(new)} again"
    if old > 1 and new > 1:
        return f"measured every {new} instead of {old} steps"
    return f"measured {_every(new)} instead of {_every(old)}"


def _every(period: int) -> str:
    return "every step" if period == 1 else f"every {period} steps"


def _milliseconds(ns: float) -> str:
    return f"{ns / 1e6:.3g} ms"
