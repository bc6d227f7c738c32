"""What an event of a whole session says where no op of the failing step is to blame."""

import math

import pytest
import torch
from replayed_step import batch
from run_numbers import run_of
from torch import nn

import probe

torch.set_num_threads(1)
pytestmark = pytest.mark.usefixtures("one_thread")


class Scaled(nn.Module):
    """`factor` is asked at every call, and is nothing that a replay could put back."""

    def __init__(self, factor):
        super().__init__()
        self.body, self._factor = nn.Linear(4, 3), factor

    def forward(self, x):
        return self.body(x) * self._factor()


class WithIdleBranch(nn.Module):
    """The gradient of one branch is exactly zero."""

    def __init__(self):
        super().__init__()
        self.used, self.idle = nn.Linear(4, 3), nn.Linear(4, 3)

    def forward(self, x):
        return self.used(x) + self.idle(x) * 0


def _train(model, optimizer, *, steps=3):
    with probe.watch(model, optimizer):
        for number in range(steps):
            optimizer.zero_grad()
            torch.log(model(batch() + number).abs() + 1).mean().backward()
            optimizer.step()


def _nonfinite_loss(spool):
    return next(event for event in run_of(spool).latest_events if event.kind == "nonfinite_loss")


def test_counter_behind_the_models_back_is_blamed_on_nothing(spool):
    calls = []
    model = Scaled(lambda: calls.append(1) or (math.nan if len(calls) == 3 else 1.0))
    _train(model, torch.optim.SGD(model.parameters(), lr=0.1))
    event = _nonfinite_loss(spool)
    assert (event.step, event.origin) == (2, None)
    assert "Origin not determined" in event.message


def test_nan_made_by_the_optimizer_is_told_as_a_parameter_that_was_bad_before(spool):
    torch.manual_seed(0)
    model = WithIdleBranch()
    _train(model, torch.optim.Adam(model.parameters(), lr=0.01, eps=0.0), steps=2)
    event = _nonfinite_loss(spool)
    assert (event.step, event.origin) == (1, None)
    assert "the parameter `idle." in event.message
    assert "was already non-finite before the forward" in event.message


def test_nan_in_loaded_weights_is_told_as_a_parameter_that_was_bad_before(spool):
    model = nn.Linear(4, 3)
    weights = model.state_dict()
    weights["bias"][1] = math.nan
    model.load_state_dict(weights)
    _train(model, torch.optim.SGD(model.parameters(), lr=0.1), steps=1)
    event = _nonfinite_loss(spool)
    assert event.origin is None
    assert "the parameter `bias` was already non-finite before the forward" in event.message


def test_bad_model_behind_a_generator_is_not_blamed_on_the_loss_nor_on_the_generator(spool):
    generator, critic = nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 1), nn.Sigmoid())
    nn.init.constant_(critic[0].weight, math.nan)
    optimizer = torch.optim.SGD(generator.parameters(), lr=0.1)
    with probe.watch(generator, optimizer):
        (-torch.log(critic(generator(batch()))).mean()).backward()
        optimizer.step()
    assert _nonfinite_loss(spool).origin is None


def test_weights_overwritten_between_steps_come_before_what_they_do(spool):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with probe.watch(model, optimizer, parameter_norm_every=5, overhead_limit=0):
        for number in range(15):
            if number == 13:
                model[2].weight.data.copy_(model[2].weight * math.nan)
            optimizer.zero_grad()
            model(batch() + number).square().mean().backward()
            optimizer.step()
    events = [event for event in run_of(spool).latest_events if event.severity == "critical"]
    assert [event.kind for event in events[:2]] == ["nonfinite_parameter", "nonfinite_loss"]
    first, second = events[:2]
    assert (first.step, first.subject, first.propagated_to) == (13, "2.weight", ["2.weight"])
    assert "last known to be finite: the norms at step 10, loss and gradients at step 12" in first.message
    assert second.origin is None
    assert "the parameter `2.weight` was already non-finite before the forward" in second.message


def test_weights_that_a_bad_update_has_spoilt_are_a_step_of_its_event(spool):
    torch.manual_seed(0)
    model = nn.Linear(4, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with probe.watch(model, optimizer):
        for number in range(4):
            optimizer.zero_grad()
            out = model(batch())
            (torch.sqrt(out * 0.0) if number == 2 else out).mean().backward()
            optimizer.step()
    (event,) = (event for event in run_of(spool).latest_events if event.severity == "critical")
    assert (event.step, event.last_step, event.count) == (2, 3, 2) and event.origin is not None


def test_finite_weights_under_a_bad_loss_are_no_event(spool):
    model = nn.Linear(4, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    with probe.watch(model, optimizer):
        for _ in range(3):
            optimizer.zero_grad()
            torch.log(model(batch()) * 0.0).mean().backward()
    assert {event.kind for event in run_of(spool).latest_events if event.severity == "critical"} == {
        "nonfinite_loss"
    }


def test_weights_that_an_unseen_update_has_spoilt_were_not_bad_before_it(spool):
    model = nn.Linear(4, 3)
    with probe.watch(model):
        for number in range(4):
            out = model(batch())
            (torch.sqrt(out * 0.0) if number == 2 else out).mean().backward()
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter -= 0.01 * parameter.grad
                    parameter.grad = None
    steps = [e.step for e in run_of(spool).latest_events if e.kind == "nonfinite_parameter"]
    assert 2 not in steps


def test_replay_that_takes_longer_than_the_user_allows_says_so(spool):
    model = Scaled(lambda: math.nan)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with probe.watch(model, optimizer, replay_limit_s=1e-9):
        torch.log(model(batch())).mean().backward()
        optimizer.step()
    assert "longer than its time limit (replay_limit_s)" in _nonfinite_loss(spool).message
