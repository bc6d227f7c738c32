"""Where two runs part, against a plain loop over dictionaries; and what is no difference."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dashboard.comparison.parting import WINDOW, Parting, Series, StepBlock, differs, find_parting
from dashboard.comparison.sentences import headline, parting_sentences

LAYERS = ("embed", "blocks.0", "head")
Row = tuple[dict[str, float], dict[str, float]]
NAN, INF = math.nan, math.inf


def row(step: int, **changes: float) -> Row:
    """Scalars and norms of one step; what is given stands in the place of a scalar or of a layer's norm."""
    scalars = {"loss": 2.0 / (1 + step), "grad_norm": 1.5, "lr": 0.1, "samples": 8.0}
    norms = {name: 1.0 + index for index, name in enumerate(LAYERS)}
    for name, value in changes.items():
        (norms if name in norms else scalars)[name] = value
    return scalars, norms


def blocks(rows: dict[int, Row], layers: Sequence[str] = LAYERS) -> Iterator[StepBlock]:
    for window in sorted({step // WINDOW for step in rows}):
        steps = sorted(step for step in rows if step // WINDOW == window)
        names = {name for step in steps for name in rows[step][0]}
        yield StepBlock(
            steps=np.array(steps),
            scalars={
                name: Series(
                    values=np.array([rows[step][0].get(name, -1.0) for step in steps]),
                    measured=np.array([name in rows[step][0] for step in steps]),
                )
                for name in names
            },
            layers=tuple(layers),
            norms=np.array([[rows[step][1].get(name, -1.0) for name in layers] for step in steps]),
            measured=np.array([[name in rows[step][1] for name in layers] for step in steps]),
        )


def part(first: dict[int, Row], second: dict[int, Row], tolerance: float = 1e-6) -> Parting:
    return find_parting(blocks(first), blocks(second), tolerance=tolerance)


def run(steps: int, **changed: dict[int, float]) -> dict[int, Row]:
    """So many steps; of a name the values at some of them."""
    return {
        step: row(step, **{name: at[step] for name, at in changed.items() if step in at})
        for step in range(steps)
    }


def test_equal_runs_part_nowhere_and_say_what_was_compared() -> None:
    found = part(run(700), run(700))
    assert found.is_equal and (found.step, found.equal, found.compared_layers) == (None, 700, 3)
    assert headline(found) == "They are equal in all 700 steps that both have."


def test_layer_that_differs_first_is_named_with_both_values() -> None:
    found = part(run(700), run(700, head={500: 3.5, 501: 9.0}, embed={501: 2.0}))
    assert (found.step, found.equal) == (500, 500)
    assert [(each.name, each.first, each.second) for each in found.layers] == [("head", 3.0, 3.5)]
    assert found.compared.count == 501


def test_layers_of_one_step_stand_in_backward_order() -> None:
    found = part(run(9), run(9, embed={4: 7.0}, head={4: 8.0}, loss={4: 1.0}))
    assert [each.name for each in found.layers] == ["head", "embed"]
    assert [each.name for each in found.scalars] == ["loss"]


def test_learning_rate_is_a_setting_and_what_follows_from_it_the_parting() -> None:
    found = part(run(20), run(20, lr={7: 0.2}, loss={8: 9.0}, head={8: 4.0}, samples={15: 4.0}))
    assert found.step == 8
    assert [(each.name, each.step) for each in found.settings] == [("lr", 7)]
    assert "The learning rate differs from step 7 on: 0.1 and 0.2." in list(
        parting_sentences(found, tolerance=1e-6)
    )


def test_setting_that_nothing_follows_from_is_a_difference_all_the_same() -> None:
    found = part(run(20), run(20, lr={19: 0.2}))
    assert found.step is None and not found.is_equal
    assert headline(found) == "They are equal in all 20 steps that both have but for their settings."


def test_rounding_is_no_difference_and_the_tolerance_says_what_is() -> None:
    off = 3.0 * (1 + 9e-7)
    assert part(run(9), run(9, head={3: off})).is_equal
    assert part(run(9), run(9, head={3: off}), tolerance=1e-7).step == 3
    assert part(run(9), run(9, head={3: np.nextafter(3.0, 4.0)}), tolerance=0.0).step == 3


@pytest.mark.parametrize(
    ("first", "second", "is_other"),
    [
        (NAN, NAN, False),
        (NAN, 1.0, True),
        (INF, INF, False),
        (INF, -INF, True),
        (INF, 1e308, True),
        (1e308, -1e308, True),
        (0.0, -0.0, False),
        (0.0, 1e-300, True),
        (1.0, 1.0 + 5e-7, False),
        (-1.0, 1.0, True),
    ],
)
def test_differs_pair_is_judged_as_training_means_it(first: float, second: float, is_other: bool) -> None:
    assert bool(differs(np.array([first]), np.array([second]), 1e-6)[0]) is is_other


def test_steps_of_one_run_are_said_and_are_no_difference() -> None:
    first, second = run(600), run(300)
    del second[10], first[20]
    found = part(first, second)
    assert found.is_equal and found.equal == 298
    assert (found.only_first.count, found.only_first.first, found.only_first.last) == (301, 10, 599)
    assert (found.only_second.count, found.only_second.first) == (1, 20)
    said = list(parting_sentences(found, tolerance=1e-6))
    assert "In the first run only, and not compared: 301 steps from 10 to 599." in said


def test_number_that_only_one_run_has_is_not_compared() -> None:
    first, second = run(9), run(9)
    del second[3][1]["head"], second[4][0]["loss"]
    first[3][1]["head"], first[4][0]["loss"] = 99.0, 99.0
    assert part(first, second).is_equal


def test_runs_without_a_common_step_are_not_called_equal() -> None:
    found = part(run(3), {step: row(step) for step in range(1000, 1003)})
    assert not found.is_equal and headline(found) == "They have no comparable step in common."
    assert not part({}, {}).is_equal
    assert not part({0: ({}, {})}, {0: ({}, {})}).is_equal


def test_layers_are_compared_by_name_whatever_their_order() -> None:
    other = ("head", "embed", "extra")
    second = {step: (row(step)[0], {"head": 3.0, "embed": 1.0, "extra": 5.0}) for step in range(5)}
    found = find_parting(blocks(run(5)), blocks(second, other))
    assert found.is_equal and found.compared_layers == 2


numbers = st.sampled_from([0.0, 1.0, 1.0 + 1e-7, 1.1, NAN, INF, -INF])
rows_of_steps = st.dictionaries(
    st.integers(0, 3 * WINDOW),
    st.tuples(
        st.dictionaries(st.sampled_from(["loss", "grad_norm", "lr"]), numbers),
        st.dictionaries(st.sampled_from(LAYERS), numbers),
    ),
    max_size=12,
)


def is_same(one: float, other: float) -> bool:
    if math.isnan(one) or math.isnan(other):
        return math.isnan(one) and math.isnan(other)
    return one == other or (
        math.isfinite(one - other) and abs(one - other) <= 1e-6 * max(abs(one), abs(other))
    )


@settings(max_examples=200, deadline=None)
@given(rows_of_steps, rows_of_steps)
def test_parting_agrees_with_a_plain_loop(first: dict[int, Row], second: dict[int, Row]) -> None:
    step, layers = None, []
    for at in sorted(first.keys() & second.keys()):
        (scalars, norms), (other_scalars, other_norms) = first[at], second[at]
        layers = [
            name
            for name in reversed(LAYERS)
            if name in norms and name in other_norms and not is_same(norms[name], other_norms[name])
        ]
        other = [
            name
            for name in ("loss", "grad_norm")
            if name in scalars and name in other_scalars and not is_same(scalars[name], other_scalars[name])
        ]
        if layers or other:
            step = at
            break
    found = part(first, second)
    assert found.step == step
    if layers:
        assert [each.name for each in found.layers] == layers
