"""Where two traced steps part, and by how much. Pure: traces and tensors in, a finding and sentences out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import msgspec
import torch
from torch import Tensor

from .trace_records import StepTrace, TracedOp, Value

MOST_OPS: Final = 16
"""Ops whose values are looked at: where the first differ by rounding alone, one may differ by more."""
MOST_VALUES: Final = 64
ROUNDINGS: Final = 32.0
"""So many times the rounding of the largest value still is rounding: sums add theirs up."""
_SHOWN: Final = 4


class Candidates(msgspec.Struct, frozen=True):
    """What is not the same to the last bit."""

    values: tuple[tuple[Value, Value], ...]
    """What the step starts from, by the same name in both."""
    alone: tuple[str, ...]
    """Names that only one has."""
    ops: tuple[tuple[TracedOp, TracedOp], ...]
    """The first `MOST_OPS` that give something else, in order; the last one may be another op."""
    equal_ops: int
    """Ops before the first of them."""
    is_shorter: bool
    """Whether one trace ends where all of it was the same."""

    def keys(self, side: int) -> list[str]:
        """What one side is to be asked for."""
        pairs = self.values[:MOST_VALUES]
        return [pair[side].key for pair in pairs] + [
            value.key for pair in self.ops for value in pair[side].outputs
        ]


class Distance(msgspec.Struct, frozen=True):
    """How far two tensors are apart."""

    largest: float
    """Largest difference; infinite where one is NaN or infinite and the other is not."""
    scale: float
    """Largest finite magnitude in either."""
    roundings: float
    """The difference in units of what one rounding of that magnitude is; infinite for integers."""
    note: str = ""
    """Why no number says it: "another shape", "NaN in one of them"."""

    @property
    def is_beyond_rounding(self) -> bool:
        """Whether sums in another order do not explain it."""
        return bool(self.note) or self.roundings > ROUNDINGS


class Parted(msgspec.Struct, frozen=True):
    """One op that differs."""

    one: TracedOp
    other: TracedOp
    distance: Distance | None
    """None where it is another op in the second run, with outputs that cannot be laid over each other."""
    reads: tuple[str, ...]
    """What it reads that is not the same, of what the step starts from."""


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """What two traces and the values of the candidates say."""

    step: int
    runs: tuple[str, str]
    ops: tuple[int, int]
    equal_ops: int
    values: tuple[tuple[str, Distance], ...]
    """What the step starts from and differs, farthest apart first."""
    values_differ: int
    alone: tuple[str, ...]
    first: Parted | None
    """The first op whose output differs."""
    beyond: Parted | None
    """The first that differs by more than rounding, where that is another one."""
    notes: tuple[str, ...]

    @property
    def is_equal(self) -> bool:
        """Whether nothing differs."""
        return self.first is None and not self.values_differ and not self.alone


def candidates(one: StepTrace, other: StepTrace) -> Candidates:
    """Return what has to be looked at: all that is not the same to the last bit."""
    named = ({value.name: value for value in side.values} for side in (one, other))
    mine, theirs = named
    pairs = [(mine[name], theirs[name]) for name in mine if name in theirs]
    found: list[tuple[TracedOp, TracedOp]] = []
    equal = min(len(one.ops), len(other.ops))
    for place, (a, b) in enumerate(zip(one.ops, other.ops, strict=False)):
        if _gives(a) == _gives(b):
            continue
        equal = min(equal, place)
        found.append((a, b))
        if (a.op, a.module, a.call) != (b.op, b.module, b.call) or len(found) == MOST_OPS:
            break
    return Candidates(
        values=tuple((a, b) for a, b in pairs if a.identity != b.identity),
        alone=tuple(sorted(set(mine) ^ set(theirs))),
        ops=tuple(found),
        equal_ops=equal,
        is_shorter=not found and len(one.ops) != len(other.ops),
    )


def _gives(op: TracedOp) -> tuple[str, tuple[object, ...]]:
    return op.op, tuple(value.identity for value in op.outputs)


def finding(
    one: StepTrace,
    other: StepTrace,
    seen: Candidates,
    kept: tuple[Mapping[str, Tensor], Mapping[str, Tensor]],
) -> Finding:
    """Measure the candidates.

    Args:
        one: the first run's step.
        other: the second run's.
        seen: of both.
        kept: the values of `Candidates.keys`, of each.
    """
    values = [
        (mine.name, measure(kept[0].get(mine.key), kept[1].get(theirs.key)))
        for mine, theirs in seen.values[:MOST_VALUES]
    ]
    apart = [(name, distance) for name, distance in values if distance is not None and not _is_same(distance)]
    names = [mine.name for mine, _ in seen.values]
    parted = [p for a, b in seen.ops if (p := _parted(a, b, kept, names)) is not None]
    beyond = [p for p in parted if p.distance is None or p.distance.is_beyond_rounding]
    first = parted[0] if parted else None
    notes = [f"{run}: {note}" for run, side in (("first", one), ("second", other)) for note in side.notes]
    if seen.is_shorter:
        notes.append("one of them ends earlier; all ops before are the same")
    return Finding(
        step=one.step,
        runs=(one.run, other.run),
        ops=(len(one.ops), len(other.ops)),
        equal_ops=seen.equal_ops,
        values=tuple(sorted(apart, key=lambda pair: -pair[1].roundings)),
        values_differ=len(seen.values),
        alone=seen.alone,
        first=first,
        beyond=beyond[0] if beyond and beyond[0] is not first else None,
        notes=tuple(notes),
    )


def _parted(
    a: TracedOp, b: TracedOp, kept: tuple[Mapping[str, Tensor], Mapping[str, Tensor]], differing: list[str]
) -> Parted | None:
    distances = [
        distance
        for mine, theirs in zip(a.outputs, b.outputs, strict=False)
        if (distance := measure(kept[0].get(mine.key), kept[1].get(theirs.key))) is not None
    ]
    worst = max(distances, key=lambda each: (bool(each.note), each.roundings), default=None)
    is_another = a.op != b.op or len(a.outputs) != len(b.outputs)
    if not is_another and (worst is None or _is_same(worst)):
        return None
    reads = [
        name
        for label in dict.fromkeys((*a.reads, *b.reads))
        for name in differing
        if name == label or name.startswith((f"{label} of call", f"{label} ("))
    ]
    return Parted(a, b, worst, tuple(reads))


def measure(one: Tensor | None, other: Tensor | None) -> Distance | None:
    """Return how far two tensors are apart; None where one was not kept."""
    if one is None or other is None:
        return None
    if one.shape != other.shape or one.dtype != other.dtype:
        shapes = f"{_form(one)} and {_form(other)}"
        return Distance(float("inf"), 0.0, float("inf"), f"{shapes} cannot be laid over each other")
    is_float = one.is_floating_point() or one.is_complex()
    rounding = torch.finfo(one.dtype).eps / 2 if is_float else 0.0
    if one.is_complex():
        one, other = torch.view_as_real(one), torch.view_as_real(other)
    mine, theirs = one.double(), other.double()
    finite = torch.isfinite(mine) & torch.isfinite(theirs)
    same = (mine == theirs) | (torch.isnan(mine) & torch.isnan(theirs))
    if bool((~finite & ~same).any()):
        return Distance(float("inf"), 0.0, float("inf"), "NaN or infinity in one of them alone")
    if not bool(finite.any()):
        return Distance(0.0, 0.0, 0.0)
    largest = float((mine - theirs)[finite].abs().max())
    scale = float(torch.maximum(mine[finite].abs(), theirs[finite].abs()).max())
    unit = rounding * scale
    return Distance(largest, scale, 0.0 if not largest else largest / unit if unit else float("inf"))


def _is_same(distance: Distance) -> bool:
    return not distance.note and distance.largest == 0.0


def _form(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"


# ------------------------------------------------------------------------------------------- sentences


def sentences(found: Finding) -> Iterator[str]:
    """Say it, a line each."""
    if found.is_equal:
        yield f"Step {found.step} is the same in both, all {found.ops[0]:,} ops of it to the last bit."
    elif found.first is None:
        yield f"All {found.equal_ops:,} ops that both have at step {found.step} give the same values."
    else:
        yield f"At step {found.step} the first op whose output differs is {_place(found.first)}."
        yield from _about(found.first)
        count = "no op" if not found.equal_ops else f"{found.equal_ops:,} ops"
        yield f"  Before it {count} of {found.ops[0]:,} gave the same to the last bit."
        if found.beyond is not None:
            yield f"The first that differs by more than rounding is {_place(found.beyond)}."
            yield from _about(found.beyond)
    yield from _starts(found)
    yield from (f"Note on the {note}" for note in found.notes)


def _place(parted: Parted) -> str:
    op = parted.one
    module = "outside of every module" if op.module is None else f"in `{op.module or 'the model itself'}`"
    line = f", {Path(op.file).name}:{op.line}" if op.line else ""
    return f"`{op.op}` {module}{line}, {op.phase}"


def _about(parted: Parted) -> Iterator[str]:
    if parted.one.op != parted.other.op:
        line = f" ({Path(parted.other.file).name}:{parted.other.line})" if parted.other.line else ""
        yield f"  The second run has `{parted.other.op}` in its place{line}."
    if parted.distance is not None:
        yield f"  {_distance(parted.distance)}"
    if parted.reads:
        yield f"  It reads what is not the same in both: {_listed(parted.reads)}."
    elif parted.one.op == parted.other.op:
        yield "  What it reads is the same in both: the op itself gives something else."


def _distance(distance: Distance) -> str:
    if distance.note:
        return f"{distance.note[0].upper()}{distance.note[1:]}."
    size = f"Largest difference {distance.largest:.3g}, of values up to {distance.scale:.3g}"
    if distance.roundings == float("inf"):
        return f"{size}; these are not rounded numbers."
    within = (
        "no more than sums in another order make" if distance.roundings <= ROUNDINGS else "beyond rounding"
    )
    return f"{size}: {distance.roundings:.3g} times one rounding of these, {within}."


def _starts(found: Finding) -> Iterator[str]:
    if found.values_differ:
        shown = [f"{name} ({_short(distance)})" for name, distance in found.values[:_SHOWN]]
        more = f", and {found.values_differ - len(shown):,} more" if found.values_differ > len(shown) else ""
        yield f"What the step started from differs: {'; '.join(shown)}{more}."
    elif not found.alone:
        yield "It started from the same parameters, inputs and random state in both."
    if found.alone:
        yield f"In one run alone: {_listed(found.alone)}."


def _short(distance: Distance) -> str:
    return distance.note or f"by up to {distance.largest:.3g}"


def _listed(names: tuple[str, ...]) -> str:
    more = f" and {len(names) - _SHOWN:,} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more
