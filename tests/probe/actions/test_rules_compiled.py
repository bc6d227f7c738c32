"""Compiled conditions against Python's own arithmetic, and what is unknown against SQL's three values."""

from __future__ import annotations

import math
import statistics

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from probe.actions.rules.compiled import compile_condition
from probe.actions.rules.history import SideHistory
from probe.delivery.control.grammar import Quantity
from probe.delivery.control.parser import parse


class Numbers:
    """A step whose numbers are given by name; what is not given was not measured."""

    def __init__(self, **values: float) -> None:
        self._values = values

    def read(self, quantity: Quantity) -> np.ndarray | None:
        value = self._values.get(quantity.name)
        return None if value is None else np.array([value])

    def names_of(self, quantity: Quantity) -> tuple[str, ...]:
        return ()


def judge(text: str, **values: float) -> bool | None:
    with np.errstate(all="ignore"):
        return compile_condition(parse(text))(Numbers(**values)).truth  # type: ignore[arg-type]


_numbers = st.one_of(st.integers(0, 50).map(str), st.sampled_from(["loss", "step", "grad_norm"]))
_terms = st.recursive(
    _numbers,
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from("+-*/%"), inner).map(lambda t: f"({' '.join(t)})"),
        inner.map(lambda text: f"-{text}"),
    ),
    max_leaves=5,
)
_comparisons = st.tuples(_terms, st.sampled_from([">", ">=", "<", "<=", "==", "!="]), _terms).map(" ".join)
_conditions = st.recursive(
    _comparisons,
    lambda inner: st.one_of(
        inner.map(lambda text: f"not ({text})"),
        st.tuples(inner, st.sampled_from(["and", "or"]), inner).map(lambda t: f"({' '.join(t)})"),
    ),
    max_leaves=4,
)


@settings(max_examples=200, deadline=None)
@given(_conditions, st.integers(-20, 20), st.integers(-20, 20), st.integers(1, 20))
def test_condition_is_what_python_makes_of_it(text: str, loss: int, step: int, norm: int) -> None:
    assume(len(text) < 400)
    values = {"loss": float(loss), "step": float(step), "grad_norm": float(norm)}
    try:
        expected = eval(text, {"__builtins__": {}}, values)  # noqa: S307
    except ZeroDivisionError:
        return
    assert judge(text, **values) == expected


@pytest.mark.parametrize(
    ("text", "truth"),
    [
        ("loss > 1", None),
        ("not loss > 1", None),
        ("loss > 1 and step > 100", False),
        ("loss > 1 and step > 1", None),
        ("loss > 1 or step > 1", True),
        ("loss > 1 or step > 100", None),
        ("grad_norm > 1", None),
        ("grad_norm != 1", None),
        ("step / 0 > 1e300", True),
        ("0 / (step - 5) > 1", None),
    ],
)
def test_what_is_unknown_decides_nothing(text: str, truth: bool | None) -> None:
    assert judge(text, step=5.0, grad_norm=math.nan) is truth


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.one_of(st.floats(-1e6, 1e6), st.sampled_from([math.nan, math.inf])), min_size=1, max_size=150)
)
def test_history_is_that_of_the_last_64_steps_without_what_is_not_finite(values: list[float]) -> None:
    history = SideHistory()
    history.follow((), 2)
    for value in values:
        history.note(np.array([value, 1.0]))
    finite = [value for value in values[-64:] if math.isfinite(value)]
    newest = [value for value in values if math.isfinite(value)]
    assert history.count(0) == len(finite)
    previous = history.read("previous")[0]
    assert previous == newest[-1] if newest else math.isnan(previous)
    for name, compute in (("median", statistics.median), ("mean", statistics.fmean), ("max", max)):
        found = history.read(name)[0]
        if len(finite) < 8:
            assert math.isnan(found)
        else:
            assert found == pytest.approx(compute(finite), rel=1e-9, abs=1e-9)
    if len(finite) >= 8:
        middle = statistics.median(finite)
        mad = statistics.median(abs(value - middle) for value in finite)
        assert history.read("mad")[0] == pytest.approx(mad, rel=1e-9, abs=1e-9)
