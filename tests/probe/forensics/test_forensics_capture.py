"""What a capture holds, what it refuses, and what it leaves alone."""

import gc
import weakref

import pytest
import torch
from replayed_step import CapturedStep, Lambda, batch, run_step
from torch import nn

from probe.forensics.capture import begin_capture

torch.set_num_threads(1)
LIMIT = 1 << 30


def _begin(model, *args, limit=LIMIT, **kwargs):
    return begin_capture(model, args, kwargs, size_cap_bytes=limit)


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


def _with_token(x):
    token = Token()
    return WithToken.apply(x, token), weakref.ref(token)


def test_capture_does_not_keep_the_graph_behind_an_input_alive():
    hidden, token = _with_token(torch.randn(4, 4, requires_grad=True))
    capture = _begin(nn.Linear(4, 4), hidden)
    assert token() is not None
    del hidden
    gc.collect()
    assert token() is None
    assert not capture.declined


def test_capture_does_not_keep_the_forwards_graph_alive():
    model = nn.Linear(4, 4)
    capture = _begin(model, batch())
    output, token = _with_token(model(batch()))
    capture.finish(output)
    assert token() is not None
    del output
    gc.collect()
    assert token() is None


def test_capture_draws_no_random_number():
    model, x = nn.Linear(4, 4), batch()
    before = torch.get_rng_state()
    run_step(model, x)
    assert torch.equal(torch.get_rng_state(), before)


def test_capture_keeps_dl_doutput_by_reference():
    step = CapturedStep(nn.Linear(4, 3))
    output = step.call(batch())
    output.retain_grad()
    step.backward(output.pow(2).mean())
    kept = step.captures[0].passes[0].by_output[0]
    assert torch.equal(kept, output.grad)
    assert not kept.requires_grad


REFUSED = {
    "an argument is a Generator": lambda: (torch.Generator(),),
    "an argument is a object": lambda: (object(),),
    "the inputs take 4 MiB": lambda: (torch.zeros(1 << 20),),
}


@pytest.mark.parametrize("reason", REFUSED)
def test_capture_of_what_it_cannot_hold_is_declined_in_words(reason):
    capture = _begin(nn.Linear(4, 4), *REFUSED[reason](), limit=1 << 20)
    assert capture.declined.startswith(reason)


def test_capture_without_gradients_is_declined():
    with torch.no_grad():
        assert "without gradients" in _begin(nn.Linear(4, 4), batch()).declined


def test_capture_inside_a_func_transform_is_declined():
    model, declined = nn.Linear(4, 4), []

    def call(x):
        declined.append(_begin(model, x).declined)
        return model(x).sum()

    torch.func.grad(call)(batch())
    assert "torch.func" in declined[0]


def test_output_without_gradient_is_declined():
    capture = _begin(nn.Linear(4, 4), batch())
    capture.finish(torch.zeros(3))
    assert "no output" in capture.declined


def test_output_gradient_above_the_limit_is_declined():
    step = CapturedStep(nn.Linear(4, 1 << 18), limit_bytes=1 << 20)
    step.backward(step.call(batch()).mean())
    assert "dL/d(output) takes 6 MiB" in step.captures[0].declined


def test_output_gradient_above_the_limit_beside_a_scalar_loss_is_dropped():
    class WithLoss(nn.Linear):
        def forward(self, x):
            logits = super().forward(x)
            return logits.pow(2).mean(), logits

    step = CapturedStep(WithLoss(4, 1 << 18), limit_bytes=1 << 20)
    step.backward(step.call(batch())[0])
    assert list(step.captures[0].passes[0].by_output) == [0]
    assert step.replay().fidelity == "exact"


def test_parameter_returned_by_the_forward_gets_no_hook():
    model = nn.Linear(4, 4)
    capture = _begin(model, batch())
    capture.finish((model(batch()), model.weight))
    assert model.weight._backward_hooks is None
    assert not capture.declined


def test_output_in_an_unknown_object_is_found_one_level_deep():
    class Result:
        pass

    class Root(nn.Linear):
        def forward(self, x):
            result = Result()
            result.score, result.self_reference = super().forward(x), self
            return result

    step = CapturedStep(Root(4, 3))
    step.backward(step.call(batch()).score.pow(2).mean())
    assert step.replay().fidelity == "exact"


def test_capture_dies_with_the_session_although_the_output_lives_on():
    model = nn.Linear(4, 4)
    capture = _begin(model, batch())
    output = model(batch())
    capture.finish(output)
    gone = weakref.ref(capture)
    del capture
    gc.collect()
    assert gone() is None
    output.sum().backward()


@pytest.mark.parametrize(
    "arguments",
    [
        lambda: ([batch(), batch()],),
        lambda: ({"x": batch(), "scale": 2.0},),
        lambda: ((batch(), {"deep": [batch()]}),),
        lambda: (nn.utils.rnn.pack_sequence([batch(3), batch(2)]),),
    ],
)
def test_containers_of_tensors_are_replayed(arguments):
    body = nn.Linear(4, 3)

    class Root(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = body

        def forward(self, value):
            tensors = [leaf for leaf in torch.utils._pytree.tree_leaves(value) if torch.is_tensor(leaf)]
            return sum(self.body(tensor).pow(2).mean() for tensor in tensors if tensor.dim() == 2)

    assert run_step(Root(), *arguments(), loss=lambda y: y).replay().fidelity == "exact"


def test_input_that_requires_grad_is_replayed_with_its_gradient():
    x = batch().requires_grad_()
    step = run_step(nn.Sequential(Lambda(lambda v: torch.sqrt((v - v) * v)), nn.Linear(4, 3)), x)
    assert step.replay().origin.op == "SqrtBackward0"
    assert torch.isnan(x.grad).any() or torch.isinf(x.grad).any()
