"""The comparison of real and replayed gradients."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from probe.forensics.fidelity import compare_gradients

NAN, INF = math.nan, math.inf


def _compare(real, replayed):
    make = torch.tensor
    return compare_gradients(
        {"w": None if real is None else make(real)}, {"w": None if replayed is None else make(replayed)}
    )


@pytest.mark.parametrize(
    ("real", "replayed", "fidelity"),
    [
        ([1.0, NAN, INF], [1.0, NAN, INF], "exact"),
        ([1.0, NAN, INF], [2.0, NAN, INF], "confirmed"),
        ([1.0, NAN, INF], [1.0, NAN, 2.0], "could not reproduce"),
        ([1.0, NAN], [NAN, 1.0], "could not reproduce"),
        ([1.0, 2.0], [1024.0, 2048.0], "confirmed"),
        ([1.0, 2.0], [-1.0, -2.0], "could not reproduce"),
        ([1.0, 2.0], [2.0, 1.0], "could not reproduce"),
        ([0.0, 1.0], [0.0, 0.0], "could not reproduce"),
        ([1.0, 2.0], [1.0], "could not reproduce"),
        ([0.0, 0.0], None, "confirmed"),
        ([1.0, 0.0], None, "could not reproduce"),
        (None, None, "confirmed"),
    ],
)
def test_compare_gradients_judges_by_value_then_by_pattern(real, replayed, fidelity):
    assert _compare(real, replayed) == fidelity


def test_compare_gradients_of_sparse_gradients_adds_repeated_rows():
    def sparse(rows, values):
        indices = torch.tensor([rows])
        return torch.sparse_coo_tensor(indices, torch.tensor(values), (4,), check_invariants=True)

    real, replayed = sparse([0, 0, 2], [1.0, 2.0, 3.0]), sparse([2, 0], [3.0, 3.0])
    assert compare_gradients({"w": real}, {"w": replayed}) == "exact"


@given(st.lists(st.floats(width=32), min_size=1, max_size=8))
def test_compare_gradients_with_itself_is_exact(values):
    assert _compare(values, values) == "exact"


@given(st.lists(st.floats(width=32), min_size=1, max_size=8), st.lists(st.floats(width=32), min_size=1))
def test_compare_gradients_never_confirms_another_pattern(real, replayed):
    replayed = (replayed * 8)[: len(real)]
    same = all(
        math.isnan(a) == math.isnan(b) and math.isinf(a) == math.isinf(b)
        for a, b in zip(real, replayed, strict=True)
    )
    assert same or _compare(real, replayed) == "could not reproduce"
