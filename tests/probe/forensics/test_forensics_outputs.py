"""What is held of a forward's outputs, and the comparison with those of a replay."""

import gc
import math
import weakref

import pytest
import torch

from probe.forensics.held_outputs import compare_outputs, held_values, hold_outputs

NAN, INF = math.nan, math.inf
LARGE = 1 << 17


def _output(values):
    return torch.tensor(values, requires_grad=True) * 1.0


@pytest.mark.parametrize(
    ("real", "replayed", "difference"),
    [
        ([1.0, NAN], [1.0, NAN], ""),
        ([1.0, 100.0], [1.5, 100.0], ""),
        ([1.0, 100.0], [3.0, 100.0], "other outputs"),
        ([1.0, NAN], [1.0, 2.0], "finite outputs where the step's own were not"),
        ([1.0, 2.0], [1.0, INF], "non-finite outputs where the step's own were finite"),
        ([NAN, NAN], [NAN, INF], ""),
        ([1.0, 2.0], [1.0], "another shape"),
    ],
)
def test_compare_outputs_tells_what_differs(real, replayed, difference):
    output = _output(real)
    check = compare_outputs(hold_outputs([output]), [_output(replayed)])
    assert bool(check.difference) == bool(difference)
    assert difference in check.difference
    assert check.is_complete
    assert check.is_finite == all(map(math.isfinite, replayed))


def test_small_output_is_known_after_the_script_has_dropped_it():
    held = hold_outputs([_output([1.0, 2.0])])
    assert compare_outputs(held, [_output([1.0, 9.0])]).difference


class Token:
    """Lives as long as the graph node that holds it."""


class WithToken(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, token):
        ctx.token = token
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 2, None


def test_holding_outputs_keeps_no_graph_and_no_large_tensor_alive():
    leaf, tokens = torch.ones(LARGE, requires_grad=True), [Token(), Token()]
    large, small = WithToken.apply(leaf, tokens[0]), WithToken.apply(leaf[:2], tokens[1])
    held = hold_outputs([large, small, large[:2]])
    alive = [weakref.ref(token) for token in tokens]
    del large, small, tokens
    gc.collect()
    assert [held_values(output) is None for output in held] == [True, False, True]
    assert [token() for token in alive] == [None, None]


def test_large_output_is_compared_while_the_script_keeps_it():
    output = torch.ones(LARGE, requires_grad=True) * 1.0
    check = compare_outputs(hold_outputs([output]), [output * NAN])
    assert "non-finite outputs" in check.difference


@pytest.mark.parametrize("size", [2, LARGE])
def test_output_changed_in_place_is_not_known(size):
    output = torch.ones(size, requires_grad=True) * 1.0
    held = hold_outputs([output])
    output.mul_(2)
    check = compare_outputs(held, [output])
    assert (check.difference, check.is_complete) == ("", False)


def test_outputs_that_were_not_held_are_not_complete():
    check = compare_outputs([], [_output([1.0])])
    assert (check.difference, check.is_complete) == ("", False)


def test_no_outputs_at_all_are_complete():
    assert compare_outputs([], []).is_complete
