"""Random chains of ops: what a replay names is the op that went wrong, or nothing.

What went wrong is read from every intermediate value and gradient of the same chain, run without the probe.
"""

import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from replayed_step import CapturedStep, Lambda
from torch import nn

torch.set_num_threads(1)
OPS = {
    "log": torch.log,
    "exp": torch.exp,
    "sqrt": torch.sqrt,
    "rsqrt": torch.rsqrt,
    "inverse": lambda x: x**-1,
    "square": lambda x: x**2,
    "negated": torch.neg,
    "sigmoid": torch.sigmoid,
    "relu": torch.relu,
    "row": lambda x: x[:1],
    "large": lambda x: x * 1e30,
    "by_zero": lambda x: x / 0.0,
    "minus_one": lambda x: x - 1.0,
    "times_nan": lambda x: x * torch.full((1,), float("nan")),
    "itself": lambda x: x - x,
    "ratio": lambda x: x / x,
    "total": lambda x: x.sum(0, keepdim=True),
    "norm": lambda x: x.norm(dim=0, keepdim=True),
}
VALUES = [-3e38, -2.0, 0.0, 1e-30, 1.0, 90.0, 3e38]


class Weight(nn.Module):
    """The first module of every chain."""

    def __init__(self, size):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))

    def forward(self, x):
        return x * self.weight


def _is_finite(tensor):
    return tensor is not None and bool(torch.isfinite(tensor).all())


def _after_the_last_finite(tensors):
    """Position of the first value of those that reach the last one without becoming finite in between."""
    return max(k for k, tensor in enumerate(tensors) if _is_finite(tensor))


def _acceptable(steps, size):
    """What (phase, module) may be named, from all values between ops; the first `size` are the model's."""
    if not _is_finite(steps[-1]):
        first = _after_the_last_finite(steps)
        found = {("forward", first) if first < size else ("loss", None)}
    else:
        position = 0
        while not _is_finite(steps[position + 1].grad):
            position += 1
        found = {("backward", position) if position < size else ("loss", None)}
        # Derivatives of a value that was bad already: the slice goes back to who made that.
        read = [k for k in range(position + 2) if k <= size and not _is_finite(steps[k])]
        found |= {("forward", _after_the_last_finite(steps[: k + 1])) for k in read}
    if not _is_finite(steps[size]):
        found.add(("forward", _after_the_last_finite(steps[: size + 1])))
    return found


chains = st.lists(st.sampled_from(sorted(OPS)), max_size=4)


@settings(deadline=None, max_examples=20)
@given(chains, chains, st.lists(st.sampled_from(VALUES), min_size=2, max_size=3))
@example(["inverse", "inverse"], [], [-3e38, -3e38])  # The mean overflows, and the derivatives as well.
@example([], ["by_zero", "times_nan"], [-3e38, -3e38])
def test_named_origin_is_where_the_first_bad_value_was_made(in_model, in_loss, values):
    model, x = (
        nn.Sequential(Weight(len(values)), *(Lambda(OPS[name]) for name in in_model)),
        torch.tensor(values),
    )
    steps = [x]
    for function in (*model, *(OPS[name] for name in in_loss), torch.mean):
        steps.append(function(steps[-1]))
        steps[-1].retain_grad()
    steps[-1].backward()
    if _is_finite(steps[-1]) and _is_finite(model[0].weight.grad):
        return
    model.zero_grad()
    step = CapturedStep(model)
    output = step.call(x)
    for name in in_loss:
        output = OPS[name](output)
    origin = step.backward(output.mean()).replay().origin
    if origin is not None:
        module = None if origin.module is None else int(origin.module)
        assert (origin.phase, module) in _acceptable(steps, len(model))
