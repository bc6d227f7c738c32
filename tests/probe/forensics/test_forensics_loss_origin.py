"""What is certain about a bad loss, against losses whose intermediate values are looked at one by one."""

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from probe.compat import torch_engine, torch_nodes
from probe.forensics.held_outputs import hold_outputs
from probe.forensics.loss.loss_graph import read_loss_graph
from probe.forensics.loss.loss_origin import examine_loss, only_suspect

NAN, INF = math.nan, math.inf
OPS = {
    "log": torch.log,
    "log1p": torch.log1p,
    "exp": torch.exp,
    "sqrt": torch.sqrt,
    "rsqrt": torch.rsqrt,
    "reciprocal": torch.reciprocal,
    "inverse": lambda x: x**-1,
    "square": lambda x: x**2,
    "root": lambda x: x**0.5,
    "negated": torch.neg,
    "sigmoid": torch.sigmoid,
    "relu": torch.relu,
    "row": lambda x: x[:1],
    "large": lambda x: x * 1e30,
    "by_zero": lambda x: x / 0.0,
    "minus_one": lambda x: x - 1.0,
    "plus_inf": lambda x: x + INF,
    "times_nan": lambda x: x * torch.full((1,), NAN),
    "itself": lambda x: x - x,
    "ratio": lambda x: x / x,
    "total": lambda x: x.sum(0, keepdim=True),
    "norm": lambda x: x.norm(dim=0, keepdim=True),
    "softmax": lambda x: torch.log_softmax(x, 0),
}
VALUES = [-3e38, -2.0, -1.0, 0.0, 1e-30, 0.5, 1.0, 90.0, 3e38]


def _chain(names, values):
    """All intermediate tensors of a loss, from the model's output to the mean; and the boundary."""
    leaf = torch.tensor(values, requires_grad=True)
    steps = [leaf * 1.0]
    boundary = torch_engine.next_sequence_number()
    for name in names:
        steps.append(OPS[name](steps[-1]))
    return [*steps, steps[-1].mean()], boundary


def _is_finite(tensor):
    return bool(torch.isfinite(tensor).all())


@settings(deadline=None)
@given(
    st.lists(st.sampled_from(sorted(OPS)), max_size=5),
    st.lists(st.sampled_from(VALUES), min_size=2, max_size=3),
)
def test_op_of_a_bad_loss_is_the_first_with_a_bad_value_or_not_named(names, values):
    steps, boundary = _chain(names, values)
    finding = examine_loss(steps[-1:], boundary=boundary, outputs=hold_outputs(steps[:1]))
    assert (finding is None) == _is_finite(steps[-1])
    if finding is not None and finding.op is not None:
        # An infinity that a later op has turned into a finite value did not reach the loss.
        healed = max((k for k, tensor in enumerate(steps) if _is_finite(tensor)), default=-1)
        first = steps[healed + 1]
        assert finding.op == first.grad_fn.name()
        assert finding.value_kind in ("NaN or Inf", "NaN" if bool(first.isnan().any()) else "Inf")


@settings(deadline=None)
@given(
    st.lists(st.sampled_from(sorted(OPS)), max_size=5),
    st.lists(st.sampled_from(VALUES), min_size=2, max_size=3),
)
def test_only_suspect_of_a_finite_loss_made_the_first_bad_gradient(names, values):
    steps, boundary = _chain(names, values)
    for tensor in steps:
        tensor.retain_grad()
    nodes = read_loss_graph(steps[-1:], boundary=boundary).nodes
    steps[-1].backward()
    if not all(map(_is_finite, steps)) or _is_finite(steps[0].grad):
        return
    last_bad = max(k for k, tensor in enumerate(steps) if not _is_finite(tensor.grad))
    op, _ = only_suspect(nodes, is_loss_finite=True)
    assert op in (None, steps[last_bad + 1].grad_fn.name())


@pytest.mark.parametrize(
    ("make", "is_closed"),
    [
        (lambda output, _: output.log().mean(), True),
        (lambda output, hidden: output.mean() + hidden.mean(), False),
        (lambda output, _: output.mean() + torch.ones((), requires_grad=True), False),
        (lambda output, _: output.detach().mean() + torch.ones(()), True),
    ],
)
def test_loss_is_made_of_outputs_alone_or_not(make, is_closed):
    leaf = torch.ones(2, requires_grad=True)
    hidden = leaf * 1.0
    output = hidden.exp()
    boundary = torch_engine.next_sequence_number()
    outputs = [torch_nodes.node_sequence_number(output.grad_fn)]
    loss = make(output, hidden)
    assert read_loss_graph([loss], boundary=boundary, outputs=outputs).is_closed == is_closed


def test_loss_graph_holds_the_nodes_after_the_boundary_only():
    output = torch.ones(2, requires_grad=True) * 2
    boundary = torch_engine.next_sequence_number()
    nodes = read_loss_graph([torch.log(output).mean()], boundary=boundary).nodes
    assert [node.name for node in nodes] == ["LogBackward0", "MeanBackward0"]


@pytest.mark.parametrize(
    ("make", "op"),
    [
        (lambda y: torch.sqrt(y).mean(), "SqrtBackward0"),
        (lambda y: torch.sqrt(y).exp().mean(), None),
        (lambda y: torch.sqrt(y).mean() * 1e30, None),
        (lambda y: torch.sqrt(y.expand(9, 2)).mean(), None),
    ],
)
def test_suspect_is_certain_where_no_other_op_can_make_a_bad_gradient(make, op):
    output = torch.ones(2, requires_grad=True) * 2
    boundary = torch_engine.next_sequence_number()
    graph = read_loss_graph([make(output)], boundary=boundary)
    assert only_suspect(graph.nodes, is_loss_finite=True)[0] == op


def _examine(make, *values):
    leaf = torch.tensor(values, requires_grad=True)
    output = leaf * 1.0
    boundary = torch_engine.next_sequence_number()
    return examine_loss([make(output)], boundary=boundary, outputs=hold_outputs([output]))


CERTAIN = {
    "log of zero": (lambda y: torch.log(y - y).mean(), "LogBackward0"),
    "log, then more": (lambda y: (torch.log(y - y) * 2 + 1).exp().mean().neg().log(), "LogBackward0"),
    "nan factor": (lambda y: (y**2).mean() * NAN, "MulBackward0"),
    "nan target": (lambda y: F.mse_loss(y, torch.full((2,), NAN)), "MseLossBackward0"),
    "no target": (lambda y: F.cross_entropy(y[None], torch.tensor([-100])), "NllLossBackward0"),
    "quotient": (lambda y: ((y - y) / (y - y)).mean(), "DivBackward0"),
    "matrix": (lambda y: (y[None] @ torch.full((2, 2), NAN)).mean(), "MmBackward0"),
    "negative power": (lambda y: ((y - y) ** -2).mean(), "PowBackward0"),
}


@pytest.mark.parametrize("case", CERTAIN)
def test_op_that_is_certain_is_named(case):
    make, op = CERTAIN[case]
    assert _examine(make, 1.0, 2.0).op == op


def test_double_factor_beyond_float32_is_no_bad_operand():
    leaf = torch.ones(2, dtype=torch.float64, requires_grad=True)
    output = leaf * 1.0
    boundary = torch_engine.next_sequence_number()
    loss = torch.expm1(output * 1e150).mean()
    assert examine_loss([loss], boundary=boundary, outputs=hold_outputs([output])).op != "MulBackward0"


def test_loss_made_of_bad_outputs_is_not_blamed_on_any_op():
    finding = _examine(lambda y: torch.log(y).mean(), NAN, 1.0)
    assert (finding.op, finding.is_proven) == (None, False)
    assert "was already non-finite" in finding.note


def test_bad_weight_of_another_model_on_the_way_to_the_loss_is_told():
    critic = torch.nn.Linear(2, 1)
    torch.nn.init.constant_(critic.weight, NAN)
    finding = _examine(lambda y: torch.sigmoid(critic(y[None])).log().mean(), 1.0, 2.0)
    assert finding.op is None
    assert finding.note == "a parameter or leaf tensor that entered the loss was already non-finite"


def test_op_beside_which_an_output_is_unknown_is_named_for_its_own_bad_operand():
    leaf = torch.ones(2, requires_grad=True)
    output = leaf * 1.0
    boundary = torch_engine.next_sequence_number()
    loss = (output * torch.full((2,), NAN)).mean()
    assert examine_loss([loss], boundary=boundary, outputs=hold_outputs([output])).op == "MulBackward0"
    finding = examine_loss([loss], boundary=boundary, outputs=())
    assert finding.op == "MulBackward0"
    assert finding.note.startswith("its operand (other) was already non-finite")


def test_loss_of_a_checkpointed_part_is_not_computed_again():
    calls = []

    def part(x):
        calls.append(1)
        return torch.log(x - x)

    finding = _examine(lambda y: torch.utils.checkpoint.checkpoint(part, y, use_reentrant=False).mean(), 1.0)
    assert finding is not None
    assert len(calls) == 1


def test_examining_a_loss_leaves_its_backward_as_it_was():
    def gradient(*, examine):
        leaf = torch.tensor([1.0, 0.0], requires_grad=True)
        loss = (torch.log(leaf * 1.0) * leaf).sum()
        if examine:
            assert examine_loss([loss], boundary=0, outputs=()) is not None
        loss.backward()
        return leaf.grad.numpy().tobytes()

    assert gradient(examine=True) == gradient(examine=False)


@pytest.mark.parametrize("loss", [torch.ones(2) * NAN, torch.tensor(NAN + 1j), torch.tensor(1)])
def test_loss_that_cannot_be_read_is_left_alone(loss):
    assert examine_loss([loss], boundary=0, outputs=()) is None
