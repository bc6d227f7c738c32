"""Makes closures of a condition, which judge it with the numbers of a step. Nothing is executed from text.

A comparison is true, false or unknown (None): unknown where nothing of it was measured, or there is too
little history. And, or and not treat it as SQL does: unknown decides nothing.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from ...delivery.control.grammar import (
    Arithmetic,
    Comparison,
    Condition,
    History,
    Junction,
    Negation,
    Negative,
    Number,
    Quantity,
    Term,
    quantities,
    uses_history,
)
from .history import SideHistory
from .quantities import StepNumbers

Floats = npt.NDArray[np.float64]
_ARITHMETIC: Final[dict[str, Callable[[Floats, Floats], Floats]]] = {
    "+": np.add,
    "-": np.subtract,
    "*": np.multiply,
    "/": np.divide,
    "%": np.mod,
}
_COMPARISONS: Final[dict[str, Callable[[Floats, Floats], npt.NDArray[np.bool_]]]] = {
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
    "==": operator.eq,
    "!=": operator.ne,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Witness:
    """What made a comparison true."""

    text: str
    """The comparison, as it was written."""
    name: str
    """Of the layer, parameter or module with the clearest values; "" for the whole model."""
    left: float
    right: float
    history: dict[str, float]
    """The statistics of the left side that were compared with, and of how many steps; may be empty."""
    names: tuple[str, ...]
    """All matches of which it is true."""


class Outcome(NamedTuple):
    """What a condition is at a step."""

    truth: bool | None
    witness: Witness | None = None


Judge = Callable[[StepNumbers], Outcome]
_Evaluate = Callable[[StepNumbers], Floats | None]


def compile_condition(condition: Condition) -> Judge:
    """Return what judges a condition. It keeps histories: every step is to be judged once, in order."""
    if isinstance(condition, Comparison):
        return _ComparisonJudge(condition)
    if isinstance(condition, Negation):
        return _negated(compile_condition(condition.operand))
    return _joined(condition, [compile_condition(operand) for operand in condition.operands])


def _negated(judge: Judge) -> Judge:
    def negated(numbers: StepNumbers) -> Outcome:
        truth = judge(numbers).truth
        return Outcome(None if truth is None else not truth)

    return negated


def _joined(junction: Junction, judges: list[Judge]) -> Judge:
    decides = not junction.is_all

    def joined(numbers: StepNumbers) -> Outcome:
        # All of them, always: each keeps its own history.
        outcomes = [judge(numbers) for judge in judges]
        truths = [outcome.truth for outcome in outcomes]
        if decides in truths:
            truth: bool | None = decides
        else:
            truth = None if None in truths else not decides
        witnesses = [one.witness for one in outcomes if one.truth and one.witness is not None]
        return Outcome(truth, witnesses[0] if witnesses else None)

    return joined


class _ComparisonJudge:
    """One comparison, with the history of its left side if the right side wants it."""

    def __init__(self, comparison: Comparison) -> None:
        self._text, self._operator = comparison.text, comparison.operator
        self._compare = _COMPARISONS[comparison.operator]
        self._history = SideHistory() if uses_history(comparison.right) else None
        self._left = _compile(comparison.left, self._history)
        self._right = _compile(comparison.right, self._history)
        self._statistics = sorted(_statistics(comparison.right))
        self._named = _first_named(comparison)

    def __call__(self, numbers: StepNumbers) -> Outcome:
        left = self._left(numbers)
        if left is None:
            return Outcome(None)
        names = () if self._named is None else numbers.names_of(self._named)
        if self._history is not None:
            self._history.follow(names, len(left))
        right = self._right(numbers)
        outcome = Outcome(None) if right is None else self._judged(left, right, names)
        if self._history is not None:
            self._history.note(left)
        return outcome

    def _judged(self, left: Floats, right: Floats, names: tuple[str, ...]) -> Outcome:
        known = ~(np.isnan(left) | np.isnan(right))
        if not known.any():
            return Outcome(None)
        holds = self._compare(left, right) & known
        if not holds.any():
            return Outcome(False)
        lefts, rights = np.broadcast_arrays(left, right)
        rows = np.flatnonzero(holds)
        with np.errstate(invalid="ignore"):
            apart = np.abs(lefts[rows] - rights[rows])
        row = int(rows[int(np.argmax(apart))])
        is_named = len(names) == len(lefts)
        return Outcome(
            True,
            Witness(
                text=self._text,
                name=names[row] if is_named else "",
                left=float(lefts[row]),
                right=float(rights[row]),
                history=self._known_history(min(row, len(left) - 1)),
                names=tuple(names[one] for one in rows) if is_named else (),
            ),
        )

    def _known_history(self, row: int) -> dict[str, float]:
        history = self._history
        if history is None:
            return {}
        known = {name: float(history.read(name)[row]) for name in self._statistics}
        return {**known, "steps": float(history.count(row))}


def _compile(term: Term, history: SideHistory | None) -> _Evaluate:
    if isinstance(term, Number):
        constant = np.array([term.value])
        return lambda numbers: constant
    if isinstance(term, Quantity):
        return lambda numbers: numbers.read(term)
    if isinstance(term, History):
        assert history is not None
        return lambda numbers: history.read(term.statistic)
    if isinstance(term, Negative):
        operand = _compile(term.operand, history)
        return lambda numbers: None if (value := operand(numbers)) is None else -value
    return _compile_arithmetic(term, history)


def _compile_arithmetic(term: Arithmetic, history: SideHistory | None) -> _Evaluate:
    left, right = _compile(term.left, history), _compile(term.right, history)
    compute = _ARITHMETIC[term.operator]

    def evaluate(numbers: StepNumbers) -> Floats | None:
        first, second = left(numbers), right(numbers)
        return None if first is None or second is None else compute(first, second)

    return evaluate


def _statistics(term: Term) -> set[str]:
    if isinstance(term, History):
        return {term.statistic}
    if isinstance(term, Arithmetic):
        return _statistics(term.left) | _statistics(term.right)
    return _statistics(term.operand) if isinstance(term, Negative) else set()


def _first_named(comparison: Comparison) -> Quantity | None:
    """What gives the names of a comparison's matches: its one pattern, else its first name in quotes."""
    found = list(quantities(comparison))
    many = [quantity for quantity in found if quantity.is_of_many]
    single = [quantity for quantity in found if quantity.pattern is not None and quantity.name != "logged"]
    return next(iter([*many, *single]), None)
