"""No origin may be false: faults where a replay cannot see them, or next to a healthy suspect."""

import ctypes
import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from replayed_step import CapturedStep, Lambda, around, batch, run_step, source_line
from torch import nn

torch.set_num_threads(1)


def _first_time(fault, otherwise=lambda x: x):
    """A forward that counts its calls where no replay can put the count back."""
    calls = []

    def run(x):
        calls.append(1)
        return fault(x) if len(calls) == 1 else otherwise(x)

    return around(run)


def _with_log(y):
    return torch.log(y.abs() + 1).mean()


FIRST_TIME = {
    "nan": (lambda x: x * math.nan, "finite outputs where the step's own were not"),
    "inf": (lambda x: x * 1e38 * 1e38, "finite outputs where the step's own were not"),
    "other_values": (lambda x: x * 3, "other outputs than the step's own"),
}


@pytest.mark.parametrize("fault", FIRST_TIME)
def test_forward_with_a_hidden_counter_is_not_blamed_on_the_loss(fault):
    function, reason = FIRST_TIME[fault]
    model = _first_time(function)
    replay = run_step(model, batch(), loss=lambda y: _with_log(y) * math.nan).replay()
    assert (replay.fidelity, replay.origin) == ("could not reproduce", None)
    assert reason in replay.reason
    assert "a counter" in replay.reason


def test_forward_that_goes_wrong_in_the_replay_only_is_not_blamed():
    model = _first_time(lambda x: x, otherwise=torch.log)
    replay = run_step(model, batch(), loss=lambda y: _with_log(y) * math.nan).replay()
    assert (replay.fidelity, replay.origin) == ("could not reproduce", None)
    assert "non-finite outputs where the step's own were finite" in replay.reason


def test_second_replay_that_goes_another_way_claims_nothing():
    """The step and the first replay divide by zero; the second, which looks for the op, takes a root."""
    calls = ctypes.c_int()  # which no replay can put back

    def function(x):
        calls.value += 1
        return (x - x) / (x - x) if calls.value < 3 else torch.sqrt(-x.abs() - 1) * 1.0

    replay = run_step(around(function), batch()).replay()
    assert replay.origin is None
    assert "a second replay of the same step went another way" in replay.reason


def test_numpy_draws_in_the_forward_are_not_blamed_on_the_loss():
    np.random.seed(0)
    model = around(lambda x: x * torch.from_numpy(np.random.rand(8)).float())
    replay = run_step(model, batch(), loss=lambda y: _with_log(y) * math.nan).replay()
    assert (replay.fidelity, replay.origin) == ("could not reproduce", None)
    assert "NumPy" in replay.reason


def test_outputs_that_are_gone_leave_the_loss_unnamed():
    model = _first_time(lambda x: x * math.nan)
    step = run_step(model, batch(), loss=_with_log)
    step.captures[0].outputs = []
    replay = step.replay()
    assert replay.origin is None
    assert "no longer kept" in replay.reason


def test_large_output_kept_by_the_script_is_compared():
    step = CapturedStep(_first_time(lambda x: x * math.nan))
    output = step.call(batch(rows=40_000))
    assert step.backward(_with_log(output)).replay().fidelity == "could not reproduce"
    assert output.nbytes > 1 << 18


def test_output_changed_in_place_after_the_forward_is_not_compared():
    step = CapturedStep(around(torch.relu))
    output = step.call(batch())
    output.add_(1)
    replay = step.backward(torch.sqrt((output - output) * output).mean()).replay()
    assert replay.origin is None
    assert "no longer kept" in replay.reason


# -- the loss


def test_nan_target_is_named_and_not_the_healthy_exp_beside_it():
    target = torch.zeros(6, 3)
    target[0] = math.nan
    replay = run_step(
        around(torch.tanh), batch(), loss=lambda y: F.mse_loss(y, target) + (y.exp() * 1e-3).mean()
    ).replay()
    assert (replay.origin.phase, replay.origin.op) == ("loss", "MseLossBackward0")
    assert "its operand (target) was already non-finite" in replay.reason
    assert "3 NaN" in replay.operands[0]


def test_nan_sample_weight_is_named_and_not_the_healthy_log_before_it():
    weight = torch.ones(6, 3)
    weight[2, 1] = math.nan
    replay = run_step(
        around(torch.tanh), batch(), loss=lambda y: (torch.log(y.abs() + 1) * weight).mean()
    ).replay()
    assert (replay.origin.phase, replay.origin.op) == ("loss", "MulBackward0")


class NanBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        return gradient * math.nan


def test_own_function_in_the_loss_is_named_and_not_the_healthy_log_after_it():
    replay = run_step(around(torch.tanh), batch(), loss=lambda y: _with_log(NanBackward.apply(y))).replay()
    assert (replay.origin.phase, replay.origin.op) == ("loss", "NanBackwardBackward")
    assert replay.value_kind == "NaN"


def test_own_function_in_the_loss_is_named_where_it_is_the_only_suspect():
    replay = run_step(around(torch.tanh), batch(), loss=lambda y: NanBackward.apply(y).mean()).replay()
    assert (replay.origin.phase, replay.origin.op) == ("loss", "NanBackwardBackward")


def test_root_of_zero_in_a_finite_loss_is_named():
    replay = run_step(around(torch.tanh), batch(), loss=lambda y: torch.sqrt((y - y) * y).mean()).replay()
    assert (replay.origin.phase, replay.origin.op) == ("loss", "SqrtBackward0")


def test_cross_entropy_without_any_target_names_the_division_by_none():
    nothing = torch.full((6,), -100)
    replay = run_step(around(torch.tanh), batch(), loss=lambda y: F.cross_entropy(y, nothing)).replay()
    assert (replay.origin.phase, replay.origin.op) == ("loss", "NllLossBackward0")


def test_loss_term_from_before_a_second_call_is_not_blamed_on_the_term_after_it():
    step = CapturedStep(around(torch.tanh))
    first = step.call(batch())
    term = torch.sqrt((first - first) * first).mean()
    step.backward(term + _with_log(step.call(batch() + 1)))
    assert step.replay().origin is None


def test_fault_in_the_loss_of_one_micro_step_is_named_there():
    step = CapturedStep(around(torch.tanh))
    for number in range(3):
        output = step.call(batch() + number)
        step.backward((torch.log(output - output) if number == 1 else output.exp()).mean())
    replay = step.replay()
    assert (replay.origin.phase, replay.origin.op) == ("loss", "LogBackward0")


def test_masked_logits_that_the_loss_cannot_take_are_not_blamed_on_the_mask():
    model = around(torch.tanh)
    model.append(Lambda(lambda y: y.masked_fill(torch.tensor([True, False, False]), -math.inf)))
    replay = run_step(model, batch(), loss=lambda y: torch.log(y.abs() + 1).mean()).replay()
    assert replay.origin is None


class Leaking(nn.Module):
    """Leaves a part of the loss on an attribute, as models with an auxiliary loss do."""

    def __init__(self, function):
        super().__init__()
        self.body, self.function = nn.Linear(4, 4), function

    def forward(self, x):
        hidden = self.body(x)
        self.auxiliary = self.function(hidden).mean()
        return hidden


@pytest.mark.parametrize("function", [lambda h: torch.log(h - h), lambda h: torch.sqrt((h - h) * h)])
def test_fault_that_bypasses_the_outputs_is_not_blamed_on_the_loss(function):
    step = CapturedStep(Leaking(function))
    output = step.call(batch())
    replay = step.backward(_with_log(output) + step.model.auxiliary).replay()
    assert replay.origin is None
    assert "came from the loss code, not only from the model's outputs" in replay.reason


class WithLoss(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(4, 3)

    def forward(self, x, labels):
        logits = self.body(x)
        return F.cross_entropy(logits, labels), logits


def test_fault_outside_of_a_model_with_a_loss_of_its_own_is_not_blamed_on_that():
    step = CapturedStep(WithLoss())
    loss, logits = step.call(batch(), torch.ones(6, dtype=torch.long))
    replay = step.backward(loss + torch.sqrt((logits - logits) * logits).mean()).replay()
    assert (replay.origin.phase, replay.origin.op) == ("loss", "SqrtBackward0")


# -- data


def test_nan_in_the_batch_of_one_micro_step_is_found_there():
    step = CapturedStep(around(torch.tanh))
    for number in range(3):
        x = batch() + number
        if number == 1:
            x[3, 2] = math.nan
        step.backward(step.call(x).pow(2).mean())
    replay = step.replay()
    assert (replay.origin.phase, replay.value_kind) == ("input", "NaN")
    assert "1 NaN" in replay.operands[0]


def test_minus_infinity_in_the_batch_is_data_and_no_mask():
    x = batch()
    x[0, 0] = -math.inf
    replay = run_step(around(torch.tanh), x.double().float()).replay()
    assert (replay.origin.phase, replay.origin.op) == ("input", "input")


def test_minus_infinity_filled_in_before_a_linear_layer_is_no_mask():
    model = around(lambda x: x.masked_fill(torch.eye(6, 8) > 0, -math.inf))
    replay = run_step(model, batch()).replay()
    assert (replay.origin.phase, replay.origin.op, replay.origin.module) == ("forward", "masked_fill", "1")


def test_scaled_mask_of_a_whole_row_names_softmax():
    mask = torch.zeros(6, 8)
    mask[1] = -math.inf
    model = nn.Sequential(nn.Linear(4, 8))
    model.forward = lambda x, mask: torch.softmax(model[0](x) + mask * 2.0, -1)
    replay = run_step(model, batch(), mask=mask).replay()
    assert (replay.origin.phase, replay.origin.op) == ("forward", "_softmax")


def test_batch_overwritten_behind_torchs_back_is_not_blamed_on_the_loss():
    x = batch()
    x[0] = math.nan
    step = run_step(around(torch.tanh), x, loss=_with_log)
    x.numpy()[0] = 0.0
    replay = step.replay()
    assert (replay.fidelity, replay.origin) == ("could not reproduce", None)


def test_weights_clipped_through_data_after_the_backward_claim_nothing():
    model = around(torch.tanh)
    step = run_step(model, batch() * 1e3, loss=lambda y: _with_log(y) * math.nan)
    for parameter in model.parameters():
        parameter.data.clamp_(-0.01, 0.01)
    replay = step.replay()
    assert (replay.fidelity, replay.origin) == ("could not reproduce", None)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_bad_tensor_of_the_scripts_own_is_named_where_the_forward_reads_it(value):
    constant = torch.full((8,), value)
    replay = run_step(around(lambda x: x * constant), batch()).replay()
    assert (replay.origin.phase, replay.origin.op, replay.origin.module) == ("forward", "mul", "1")


def test_running_statistics_that_the_bad_batch_has_spoilt_do_not_hide_it():
    x = batch()
    x[0, 0] = math.inf
    replay = run_step(nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 3)), x).replay()
    assert (replay.origin.phase, replay.origin.op) == ("input", "input")


class Ema(nn.Module):
    """Reads a running mean, and puts the mean of roots of negative values into it."""

    def __init__(self, *, is_buffer):
        super().__init__()
        self.body = nn.Linear(4, 4)
        mean = torch.ones(4)
        self.register_buffer("mean", mean) if is_buffer else setattr(self, "mean", mean)

    def forward(self, x):
        hidden = self.body(x) * self.mean.clone()
        made = torch.sqrt(-hidden.abs() - 1)
        self.mean = made.detach().mean(0)
        return made


@pytest.mark.parametrize("is_buffer", [True, False])
def test_state_that_a_first_call_has_spoilt_is_not_blamed_on_its_reader(is_buffer):
    replay = run_step(Ema(is_buffer=is_buffer), batch()).replay()
    assert replay.origin is None
    assert "`mean`, which the forward itself changes, is non-finite now" in replay.reason


@pytest.mark.parametrize("is_buffer", [True, False])
def test_state_that_a_later_call_has_spoilt_does_not_hide_the_op(is_buffer):
    model = Ema(is_buffer=is_buffer)
    run_step(model, batch())
    model.zero_grad()
    model.mean = torch.ones(4)
    replay = run_step(model, batch()).replay()
    assert (replay.fidelity, replay.origin.op) == ("exact", "sqrt")


def test_forward_that_no_backward_followed_is_not_blamed():
    step = CapturedStep(around(torch.tanh))
    step.call(batch() * math.nan)
    x = batch()
    x[0] = math.inf
    replay = step.backward(step.call(x).mean()).replay()
    assert replay.value_kind == "Inf"


class TwoOutputs(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x):
        hidden = self.body(x)
        return torch.sqrt((hidden - hidden) * hidden), torch.log(-self.head(x).abs() - 1)


def test_bad_output_that_the_loss_does_not_use_is_not_blamed():
    step = CapturedStep(TwoOutputs())
    used, _unused = step.call(batch())
    replay = step.backward(used.mean()).replay()
    assert replay.origin.op == "SqrtBackward0"


# -- several roots


def _two_roots(between, loss):
    torch.manual_seed(0)
    generator, critic = nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 4), nn.Sigmoid())
    step = CapturedStep(nn.ModuleDict({"g": generator, "d": critic}))
    hidden = step.call(batch(), root=generator)
    step.backward(loss(step.call(between(hidden), root=critic)))
    return step.replay()


def test_fault_in_the_forward_between_two_roots_is_blamed_on_neither():
    replay = _two_roots(lambda hidden: torch.log(hidden * 0), torch.mean)
    assert replay.origin is None
    assert "the argument `input` of forward was non-finite; it was computed before" in replay.reason


def test_fault_in_the_backward_between_two_roots_is_not_blamed_on_the_loss():
    replay = _two_roots(lambda h: torch.sqrt((h - h) * h), lambda y: -torch.log(y).mean())
    assert replay.origin.op == "SqrtBackward0"
    assert "between two of them" in replay.reason
    assert "between two of them" in replay.reason


def test_log_of_zero_in_the_loss_of_two_roots_is_named():
    replay = _two_roots(lambda hidden: hidden, lambda y: -torch.log(y - y).mean())
    assert (replay.origin.phase, replay.origin.op) == ("loss", "log")


def test_hidden_counter_in_the_first_of_two_roots_is_not_blamed_on_the_second():
    first, second = _first_time(lambda x: x * math.nan), nn.Linear(3, 2)
    step = CapturedStep(nn.ModuleDict({"g": first, "d": second}))
    step.backward(step.call(step.call(batch(), root=first), root=second).mean())
    assert step.replay().origin is None


def test_detached_output_of_another_root_is_followed_back_to_it():
    torch.manual_seed(0)
    first, second = around(lambda x: torch.sqrt(-x.abs() - 1)), nn.Linear(3, 2)
    step = CapturedStep(nn.ModuleDict({"g": first, "d": second}))
    step.backward(step.call(step.call(batch(), root=first).detach(), root=second).mean())
    replay = step.replay()
    assert (replay.origin.phase, replay.origin.op, replay.origin.module) == ("forward", "sqrt", "g.1")


# -- hooks


def test_tensor_hook_that_makes_nan_is_named_as_a_hook_with_its_line():
    def with_hook(x):
        if x.requires_grad:
            x.register_hook(lambda gradient: gradient * math.nan)  # the hook's line
        return x

    replay = run_step(around(with_hook), batch()).replay()
    assert (replay.origin.phase, replay.origin.op) == ("backward", "AddmmBackward0 (hook: mul)")
    assert "# the hook's line" in source_line(replay.backward[-1])
