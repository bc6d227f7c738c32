"""Which op of a finite loss made the first bad gradient, against derivatives computed one by one."""

import math
import re

import pytest
import torch
import torch.nn.functional as F
from loss_programs import SHAPE, finite, random_program, truth_of
from replayed_step import CapturedStep, Lambda, around, batch, run_step
from run_numbers import run_of
from torch import nn

import probe
from probe.forensics.capture import begin_capture
from probe.forensics.loss.loss_gradients import MAX_WATCHED

torch.set_num_threads(1)
PROGRAMS = 1000
FOUND_IN_LOSS = "between the model's outputs and the loss"


class Planted(nn.Module):
    """Returns what it was made with."""

    def __init__(self, values):
        super().__init__()
        self.values = nn.Parameter(values.clone())

    def forward(self, x):
        return self.values * x


def _claim(program):
    """The model's gradient after the step, and what the probe says of it."""
    step = CapturedStep(Planted(program.outputs))
    step.backward(program.run(step.call(torch.ones((), dtype=program.outputs.dtype))))
    return step.model.values.grad, step.replay()


def _is_same_op(op: str, node: str) -> bool:
    """Whether an op, by its own name or by its autograd node's, is the one that made a node."""
    plain = [re.sub(r"Backward\d*$|_forward$|[_\W]", "", name).lower() for name in (op, node)]
    return plain[0] == plain[1]


@pytest.mark.filterwarnings("ignore:std", "ignore:var", "ignore:Using a target size")
@pytest.mark.parametrize(
    "seeds",
    [range(PROGRAMS // 20), pytest.param(range(PROGRAMS // 20, PROGRAMS), marks=pytest.mark.faults)],
    ids=["some", "more"],
)
def test_no_op_of_a_random_loss_is_falsely_named(seeds):
    """Of the finite losses most are explained, so that this does not hold by saying nothing."""
    faults, claims, false = 0, 0, []
    for seed in seeds:
        program = random_program(seed)
        truth = truth_of(program)
        if not truth.bad_gradient and math.isfinite(truth.loss):
            continue
        gradient, replay = _claim(program)
        assert truth.bad_gradient == (gradient is not None and not finite(gradient))
        is_finite = math.isfinite(truth.loss)
        faults += is_finite
        if replay.origin is None:
            continue
        claims += is_finite
        # A derivative at an infinite value is bad because of who made that value.
        makers = (*truth.backward[:1], *truth.aside) if is_finite else truth.forward
        if replay.origin.phase != "loss" or not any(
            node is not None and _is_same_op(replay.origin.op, node) for node in makers
        ):
            false.append((seed, replay.origin.op, makers))
    assert not false
    assert faults > 0.07 * len(seeds)
    assert claims > 0.8 * faults


# What each derivative is at zero: 1 / 1e-30 * 1e30 / n, 0.5 / 0, -1 / 1e-60, 0 / 0, -1 / 0, 1 / 1e-44.
ONLY_IN_THE_DERIVATIVE = {
    "two factors": (lambda y: (y / 1e-30 * 1e30).mean(), "DivBackward0"),
    "two factors beside a healthy log": (
        lambda y: (torch.log(y + 1) + y / 1e-30).mean() * 1e30,
        "DivBackward0",
    ),
    "root": (lambda y: (y.sqrt() * 1e-20).mean(), "SqrtBackward0"),
    "power": (lambda y: (y**0.5).exp().mean(), "PowBackward0"),
    "quotient": (lambda y: (1e-30 / (y + 1e-30)).mean(), "ReciprocalBackward0"),
    "branch not taken": (lambda y: torch.where(y > 0, y.log(), y + 2).sqrt().mean(), "LogBackward0"),
    "acos": (lambda y: torch.acos(y + 1).square().add(1).log().sub(y.exp()).mean(), "AcosBackward0"),
    "unit vector": (lambda y: (y / y.norm(dim=1, keepdim=True).clamp_min(1e-44)).mean(), "DivBackward0"),
    "detached factor": (lambda y: (y.sqrt() * (y.detach() + 1).log()).mean(), "SqrtBackward0"),
    "two terms": (lambda y: F.mse_loss(y, y.detach() + 1) + y.sqrt().sum(), "SqrtBackward0"),
}


@pytest.mark.parametrize("rows", [4, 40_000])
@pytest.mark.parametrize("case", ONLY_IN_THE_DERIVATIVE)
def test_op_whose_derivative_alone_is_infinite_is_named(case, rows):
    make, op = ONLY_IN_THE_DERIVATIVE[case]
    step = CapturedStep(Planted(torch.zeros(rows, 3)))
    output = step.call(torch.ones(()))
    replay = step.backward(make(output)).replay()
    assert math.isfinite(step.loss.item())
    assert (replay.origin.phase, replay.origin.op) == ("loss", op)


def test_bad_gradient_that_the_script_starts_from_is_blamed_on_no_op():
    for make in (lambda y: torch.sqrt(y + 1), lambda y: y.square().sqrt().log1p(), lambda y: F.gelu(y)):
        step = CapturedStep(Planted(torch.ones(SHAPE)))
        losses = make(step.call(torch.ones(())))
        step.captures[0].note_backward([losses], is_from_one=False)
        losses.backward(torch.full(SHAPE, math.inf))
        replay = step.replay()
        assert replay.origin is None
        assert FOUND_IN_LOSS in replay.reason


def test_two_ops_that_each_make_a_bad_gradient_are_both_told():
    loss = lambda y: (y.sqrt() + torch.acos(y + 1)).mean()  # noqa: E731
    replay = run_step(Planted(torch.zeros(SHAPE)), torch.ones(()), loss=loss).replay()
    assert replay.origin is None
    assert "AcosBackward0, SqrtBackward0" in replay.reason


def test_sum_of_gradients_that_overflows_is_blamed_on_no_op():
    loss = lambda y: (y * 3e38).sum() + (y / 4e-39).sum()  # noqa: E731
    replay = run_step(Planted(torch.zeros(SHAPE)), torch.ones(()), loss=loss).replay()
    assert replay.origin is None


def test_factor_in_the_second_of_four_micro_steps_is_named():
    step = CapturedStep(Planted(torch.zeros(SHAPE)))
    for number in range(4):
        output = step.call(torch.ones(()))
        step.backward((output / (1e-45 if number == 1 else 1.0) + torch.log(output + 1)).mean() / 4)
    replay = step.replay()
    assert (replay.origin.phase, replay.origin.op) == ("loss", "DivBackward0")


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
@pytest.mark.parametrize("is_root_compiled", [True, False])
def test_compiled_loss_is_named_as_a_whole_where_it_is_to_blame(is_root_compiled):
    root = torch.compile(lambda y: y.sqrt().mean(), backend="aot_eager")
    log = torch.compile(lambda y: torch.log(y + 1).mean(), backend="aot_eager")

    def loss(y):
        return root(y) if is_root_compiled else log(y) + y.sqrt().mean()

    replay = run_step(Planted(torch.zeros(SHAPE)), torch.ones(()), loss=loss).replay()
    expected = "CompiledFunctionBackward" if is_root_compiled else "SqrtBackward0"
    assert (replay.origin.phase, replay.origin.op) == ("loss", expected)


# -- what watching costs


@pytest.mark.parametrize(
    "make",
    [
        lambda y: F.cross_entropy(y, torch.zeros(4, dtype=torch.long)),
        lambda y: F.mse_loss(y, torch.ones(SHAPE)),
        lambda y: F.binary_cross_entropy_with_logits(y.float(), torch.ones(SHAPE)),
        lambda y: (torch.where(y > 0, y, 0) - 1).abs().sum(),
    ],
)
def test_ordinary_loss_is_not_watched(make):
    assert _noted(make).loss_graph.gradients is None


def test_loss_of_very_many_ops_is_not_watched():
    def make(y):
        for _ in range(MAX_WATCHED + 1):
            y = torch.sin(y)
        return y.mean()

    assert _noted(make).loss_graph.gradients is None


def _noted(make):
    step = CapturedStep(around(torch.tanh))
    step.captures.append(capture := begin_capture(step.model, (batch(4),), {}, size_cap_bytes=1 << 20))
    output = step.model(batch(4))
    capture.finish(output)
    capture.note_backward([make(output)])
    return capture


def test_graph_that_is_sent_back_often_has_one_hook_of_ours():
    step = CapturedStep(Planted(torch.zeros(SHAPE)))
    loss = torch.sqrt(step.call(torch.ones(())) + 1).mean()
    for _ in range(5):
        step.captures[0].note_backward([loss])
        loss.backward(retain_graph=True)
    handle = loss.grad_fn.next_functions[0][0].register_hook(lambda *_: None)
    assert len(handle.hooks_dict_ref()) == 2


def test_gradients_are_the_same_bits_where_a_loss_is_watched():
    def gradient(*, watched):
        model, x = around(torch.tanh), batch()
        loss = lambda y: (y.exp() / (y.square().sum() + 1).sqrt()).log().mean()  # noqa: E731
        if watched:
            return [p.grad for p in run_step(model, x, loss=loss).model.parameters()]
        loss(model(x)).backward()
        return [p.grad for p in model.parameters()]

    pairs = zip(gradient(watched=True), gradient(watched=False), strict=True)
    assert all(one.numpy().tobytes() == other.numpy().tobytes() for one, other in pairs)


def test_loss_that_is_watched_can_be_differentiated_twice():
    def penalty(*, watched):
        model, x = around(torch.tanh), batch()
        step = CapturedStep(model)
        y = step.call(x) if watched else model(x)
        loss = (y.exp() / (y.square().sum() + 1)).mean()
        if watched:
            step.captures[0].note_backward([loss])
        first = torch.autograd.grad(loss, list(model.parameters()), create_graph=True)
        sum(gradient.square().sum() for gradient in first).backward()
        return [p.grad for p in model.parameters() if p.grad is not None]

    pairs = zip(penalty(watched=True), penalty(watched=False), strict=True)
    assert all(torch.equal(one, other) for one, other in pairs)


# -- whole sessions


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("case", ["two factors beside a healthy log", "branch not taken", "root"])
def test_event_of_a_session_names_the_op_of_the_loss(spool, case):
    make, op = ONLY_IN_THE_DERIVATIVE[case]
    model = nn.Sequential(nn.Linear(4, 3), Lambda(lambda y: y * 0))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with probe.watch(model, optimizer):
        make(model(batch())).backward()
        optimizer.step()
    events = run_of(spool).latest_events
    event = next(event for event in events if event.kind == "nonfinite_gradient")
    assert (event.origin.phase, event.origin.op) == ("loss", op)


@pytest.mark.usefixtures("one_thread")
def test_overflow_by_a_scalers_factor_has_no_origin(spool):
    model = nn.Linear(4, 3)
    optimizer, scaler = torch.optim.SGD(model.parameters(), lr=0.1), torch.amp.GradScaler("cpu")
    with probe.watch(model, optimizer):
        loss = (model(batch()).sigmoid().log() * 1e35).mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    events = run_of(spool).latest_events
    assert [event.origin for event in events if event.kind == "amp_overflow"] == [None]
    assert not any(event.kind.startswith("nonfinite") for event in events)
