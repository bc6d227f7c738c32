"""Healthy patterns that make infinities or NaN on the way: the replay must never name one of them."""

import math

import pytest
import torch
import torch.nn.functional as F
from replayed_step import Lambda, around, batch, run_step
from torch import nn

torch.set_num_threads(1)
INFINITY = math.inf


def _upper(x):
    return torch.ones(x.shape[-1], x.shape[-1], dtype=torch.bool).triu(1)


def _scores(x):
    return x[:, :, None] * x[:, None, :]


HEALTHY = {
    "masked_fill": lambda x: torch.softmax(_scores(x).masked_fill(_upper(x), -INFINITY), -1).sum(-1),
    "masked_fill_": lambda x: torch.softmax(_scores(x).masked_fill_(_upper(x), -INFINITY), -1).sum(-1),
    "full_mask": lambda x: torch.softmax(_scores(x) + torch.full((8, 8), -INFINITY).triu(1), -1).sum(-1),
    "where": lambda x: torch.softmax(torch.where(_upper(x), -INFINITY, _scores(x)), -1).sum(-1),
    "causal_sdpa": lambda x: F.scaled_dot_product_attention(
        _scores(x), _scores(x), _scores(x), is_causal=True
    ).sum(-1),
    "boolean_sdpa": lambda x: F.scaled_dot_product_attention(
        _scores(x), _scores(x), _scores(x), attn_mask=~_upper(x)
    ).sum(-1),
    "top_k": lambda x: torch.softmax(x.masked_fill(x < x.topk(2).values[:, -1:], -INFINITY), -1),
    "logsumexp": lambda x: x + torch.logsumexp(x.masked_fill(x > 100, -INFINITY), -1, keepdim=True),
    "norm_of_zero": lambda x: x + (x - x).norm(dim=-1, keepdim=True),
    "std_of_constant": lambda x: x + (x * 0 + 1).std(dim=-1, keepdim=True),
    "normalize_zero": lambda x: x + F.normalize(x - x, dim=-1) * 1e-20,
    "amax": lambda x: x + torch.cat([x, torch.full_like(x, -INFINITY)], -1).amax(-1, keepdim=True),
    "max_pool": lambda x: F.max_pool1d(x[:, None], 3, 1, 1)[:, 0],
    "dropout_of_all": lambda x: x + F.dropout(x, 1.0),
    "finfo_min": lambda x: torch.softmax(x + torch.finfo(x.dtype).min * (x > 0), -1),
    "nan_to_num": lambda x: x + torch.nan_to_num((x.detach() - x.detach()) / 0.0, nan=0.0),
    "empty_filled": lambda x: x + torch.empty_like(x).copy_(x) + torch.empty(8).fill_(1.0),
    "healed_log": lambda x: torch.where(x.detach() > 1e9, torch.log(x.detach().abs() * 0), x),
}


@pytest.mark.parametrize("pattern", HEALTHY)
def test_healthy_pattern_alone_gives_no_origin(pattern):
    replay = run_step(around(HEALTHY[pattern]), batch()).replay()
    assert replay.fidelity == "exact"
    assert replay.origin is None
    assert "no value became non-finite" in replay.reason


# Two draws of a dropout differ, so that their difference is no zero.
@pytest.mark.parametrize("pattern", sorted(HEALTHY.keys() - {"dropout_of_all"}))
def test_healthy_pattern_before_a_backward_fault_is_not_named(pattern):
    model = around(lambda x: torch.sqrt((HEALTHY[pattern](x) - HEALTHY[pattern](x)) * x) + x)
    replay = run_step(model, batch()).replay()
    assert replay.fidelity == "exact"
    assert (replay.origin.phase, replay.origin.op) == ("backward", "SqrtBackward0")


@pytest.mark.parametrize("pattern", HEALTHY)
def test_healthy_pattern_before_a_forward_fault_is_not_named(pattern):
    replay = run_step(around(lambda x: torch.exp(HEALTHY[pattern](x) * 0 + 1e4)), batch()).replay()
    assert (replay.origin.phase, replay.origin.op) == ("forward", "exp")


def test_uninitialised_memory_under_deterministic_fill_is_not_named():
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    try:
        model = around(lambda x: torch.exp(torch.empty_like(x).copy_(x) * 0 + 1e4))
        replay = run_step(model, batch()).replay()
    finally:
        torch.use_deterministic_algorithms(before)
    assert replay.origin.op == "exp"


def test_uninitialised_out_argument_does_not_hide_the_op_that_fills_it():
    def divide(x):
        result = torch.empty(6, 8)
        with torch.no_grad():
            torch.div(x - x, x - x, out=result)
        return x + result

    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    try:
        replay = run_step(around(divide), batch()).replay()
    finally:
        torch.use_deterministic_algorithms(before)
    assert (replay.origin.op, replay.value_kind) == ("div", "NaN")


def test_mask_given_as_an_argument_is_not_an_input_fault():
    model = around(torch.relu)
    mask = torch.full((8, 8), -INFINITY).triu(1)
    model[1].function = lambda x: torch.softmax(_scores(x) + mask, -1).sum(-1) / (x - x)
    replay = run_step(model, batch()).replay()
    assert (replay.origin.phase, replay.origin.op) == ("forward", "div")


def test_masked_logits_as_output_do_not_hide_a_backward_fault():
    mask = torch.tensor([True, False, False])
    model = around(lambda x: torch.sqrt((x - x) * x) + x)
    model.append(type(model[1])(lambda y: y.masked_fill(mask, -INFINITY)))
    replay = run_step(model, batch(), loss=lambda y: y[:, 1:].mean()).replay()
    assert (replay.origin.phase, replay.origin.op) == ("backward", "SqrtBackward0")


# -- infinities that the user has declared intended


def _minus_infinity(then=lambda h: h):
    """Module "1" makes -inf without a constant, module "2" does something with it."""
    torch.manual_seed(0)
    make = Lambda(lambda h: torch.log(torch.relu(h) * 0.0) + h * 0.0)
    return nn.Sequential(nn.Linear(4, 4), make, Lambda(then))


@pytest.mark.parametrize("names", [["1"], ["log"], ["?"], ["other", "lo*"]])
def test_intended_infinity_is_no_origin(names):
    step = run_step(_minus_infinity(), batch())
    assert (step.replay().origin.op, step.replay().origin.module) == ("log", "1")
    replay = step.replay(intended=names)
    assert replay.origin is None
    assert "written on purpose" in replay.reason


def test_nan_made_of_an_intended_infinity_is_an_origin():
    replay = run_step(_minus_infinity(lambda h: h - h), batch()).replay(intended=["1"])
    assert (replay.origin.op, replay.origin.module) == ("sub", "2")


def test_intended_names_of_other_modules_hide_nothing():
    replay = run_step(_minus_infinity(), batch()).replay(intended=["0", "2", "sqrt"])
    assert (replay.origin.op, replay.origin.module) == ("log", "1")
