"""Faults planted in small real models: the replay must name the op, the phase, the module and the line."""

import math
from pathlib import Path

import pytest
import torch
from replayed_step import CapturedStep, around, batch, run_step, source_line
from torch import nn
from torch.utils.checkpoint import checkpoint

import probe
from probe.forensics.loss.loss_graph import LossGraph

torch.set_num_threads(1)


class SquareRoot(nn.Module):
    def forward(self, x):
        return torch.sqrt((x - x) * x)  # the planted line


def test_sqrt_of_zero_backward_names_op_module_and_forward_line():
    model = nn.Sequential(nn.Linear(4, 8), nn.Sequential(nn.ReLU(), SquareRoot()), nn.Linear(8, 3))
    replay = run_step(model, batch()).replay()
    assert replay.fidelity == "exact"
    assert (replay.origin.phase, replay.origin.op) == ("backward", "SqrtBackward0")
    assert (replay.origin.module, replay.origin.stage) == ("1.1", "local")
    assert "# the planted line" in source_line(replay.forward[-1])
    assert replay.forward[-1].function == "SquareRoot.forward"


def test_sqrt_of_zero_backward_summarises_its_operands():
    replay = run_step(nn.Sequential(nn.Linear(4, 8), SquareRoot()), batch()).replay()
    assert any("48 zeros" in line for line in replay.operands)
    assert replay.value_kind in ("Inf", "NaN or Inf")


def test_forward_stack_begins_in_the_training_loop():
    replay = run_step(nn.Sequential(nn.Linear(4, 8), SquareRoot()), batch()).replay()
    functions = [frame.function for frame in replay.forward]
    assert functions[-2:] == ["Sequential.forward", "SquareRoot.forward"]
    assert functions[0] != "Sequential.forward"
    ours = str(Path(probe.__file__).parent / "forensics")
    assert not any(frame.file.startswith(ours) for frame in replay.forward)


FORWARD_FAULTS = {
    "log": lambda x: torch.log(-x.abs() - 1),
    "div": lambda x: (x - x) / (x - x),
    "exp": lambda x: torch.exp(x.abs() * 1e4 + 100),
    "mul": lambda x: x * math.nan,
    "std": lambda x: x * x[:1, :1].std(),
    "acos": lambda x: torch.acos(x.abs() + 2),
    "pow": lambda x: (x - x).pow(-1.0) * 1.0,
    "_softmax": lambda x: torch.softmax(x.masked_fill(torch.ones_like(x, dtype=torch.bool), -math.inf), -1),
}


@pytest.mark.parametrize("op", FORWARD_FAULTS)
@pytest.mark.filterwarnings("ignore:std")
def test_forward_fault_names_the_op_in_its_module(op):
    replay = run_step(around(FORWARD_FAULTS[op]), batch()).replay()
    assert replay.fidelity in ("exact", "confirmed")
    assert (replay.origin.phase, replay.origin.op, replay.origin.module) == ("forward", op, "1")
    assert source_line(replay.forward[-1]).startswith(f'"{op}"')


def test_forward_fault_in_place_is_named_although_it_overwrites_its_operand():
    replay = run_step(around(lambda x: (x - x).add(1).clone().sub_(1).log_() * 0), batch()).replay()
    assert (replay.origin.phase, replay.origin.op) == ("forward", "log_")
    assert replay.value_kind == "Inf"


def test_half_overflow_names_the_cast():
    replay = run_step(around(lambda x: (x * 1e6).to(torch.float16).float()), batch()).replay()
    assert (replay.origin.phase, replay.origin.op) == ("forward", "_to_copy")


def test_assigned_nan_names_the_line_that_wrote_it():
    def assign(x):
        x = x.clone()
        x[0] = math.nan
        return x

    replay = run_step(around(assign), batch()).replay()
    assert (replay.origin.phase, replay.origin.module) == ("forward", "1")
    assert source_line(replay.forward[-1]) == "x[0] = math.nan"


def test_propagated_to_lists_modules_then_parameters_in_order():
    model = around(FORWARD_FAULTS["log"])
    replay = run_step(model, batch(), loss=lambda output: (output**2).mean()).replay()
    assert replay.propagated_to == ["2", "0.weight", "0.bias", "2.weight", "2.bias"]


def test_where_trap_names_the_backward_of_the_branch_not_taken():
    trap = around(lambda x: torch.where(x.detach() * 0 > 1, torch.sqrt((x - x) * x), x))
    replay = run_step(trap, batch()).replay()
    assert (replay.origin.phase, replay.origin.op) == ("backward", "SqrtBackward0")


def test_fully_masked_attention_row_names_softmax_and_not_the_mask():
    torch.manual_seed(0)
    model = nn.MultiheadAttention(8, 2, batch_first=True)
    mask = torch.zeros(5, 5).masked_fill(torch.eye(5) > 2, 0)
    mask[2] = -math.inf
    x = torch.randn(2, 5, 8)
    step = CapturedStep(model)
    step.backward(step.call(x, x, x, attn_mask=mask, need_weights=True)[0].mean())
    replay = step.replay()
    assert replay.fidelity == "exact"
    assert (replay.origin.phase, replay.origin.op) == ("forward", "_softmax")


def test_nan_in_the_batch_is_an_input_fault_that_names_the_argument():
    x = batch()
    x[3, 1] = math.nan
    replay = run_step(around(torch.relu), x).replay()
    assert (replay.origin.phase, replay.origin.module) == ("input", "")
    assert "argument `input`" in replay.reason
    assert "1 NaN" in replay.operands[0]


def test_parameter_bad_before_the_forward_is_a_reason_and_not_an_origin():
    model = around(torch.relu)
    with torch.no_grad():
        model[2].weight[0, 0] = math.nan
    replay = run_step(model, batch()).replay()
    assert replay.origin is None
    assert "parameter `2.weight` was already non-finite" in replay.reason


def test_log_in_the_loss_is_named_with_phase_loss():
    replay = run_step(around(torch.relu), batch(), loss=lambda y: torch.log(y - y).mean()).replay()
    assert (replay.origin.phase, replay.origin.op, replay.origin.module) == ("loss", "LogBackward0", None)


def test_nan_factor_on_the_loss_is_named_with_phase_loss():
    replay = run_step(around(torch.relu), batch(), loss=lambda y: (y**2).mean() * math.nan).replay()
    assert (replay.origin.phase, replay.origin.op) == ("loss", "MulBackward0")


def test_infinite_loss_with_finite_gradients_is_a_fault_of_the_loss():
    replay = run_step(around(torch.relu), batch(), loss=lambda y: y.mean() + math.inf).replay()
    assert replay.fidelity == "exact"
    assert "between the model's outputs and the loss" in replay.reason


def test_loss_that_was_not_noted_gives_a_reason_instead_of_an_origin():
    step = run_step(around(torch.relu), batch(), loss=lambda y: torch.log(y - y).mean())
    step.captures[0].loss_graph = LossGraph(is_closed=True)
    step.captures[0].loss_finding = None
    replay = step.replay(loss=step.loss.detach())
    assert replay.origin is None
    assert "between the model's outputs and the loss" in replay.reason


def test_fault_in_the_second_of_two_roots_is_found_there():
    torch.manual_seed(0)
    generator, critic = nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 4), SquareRoot())
    step = CapturedStep(nn.ModuleDict({"g": generator, "d": critic}))
    hidden = step.call(batch(), root=generator)
    step.backward(step.call(hidden, root=critic).mean())
    replay = step.replay()
    assert replay.fidelity == "exact"
    assert (replay.origin.op, replay.origin.module) == ("SqrtBackward0", "d.1")


class Checkpointed(nn.Module):
    def __init__(self, *, reentrant):
        super().__init__()
        self.first, self.inner, self.last = nn.Linear(4, 8), SquareRoot(), nn.Linear(8, 3)
        self.reentrant = reentrant

    def forward(self, x):
        return self.last(checkpoint(self.inner, self.first(x), use_reentrant=self.reentrant))


@pytest.mark.parametrize("reentrant", [False, True])
def test_fault_inside_a_checkpoint_is_named_with_its_line(reentrant):
    torch.manual_seed(0)
    replay = run_step(Checkpointed(reentrant=reentrant), batch()).replay()
    assert replay.fidelity == "exact"
    assert (replay.origin.phase, replay.origin.op) == ("backward", "SqrtBackward0")
    assert replay.origin.module == "inner"
    assert "# the planted line" in source_line(replay.forward[-1])


class CheckpointedMethod(nn.Module):
    """What is checkpointed is a method that begins and ends in submodules, its fault between them."""

    def __init__(self, *, reentrant):
        super().__init__()
        self.first, self.last = nn.Linear(4, 8), nn.Linear(8, 8)
        self.reentrant = reentrant

    def block(self, x):
        hidden = self.first(x)
        hidden = hidden + torch.sqrt(hidden - hidden)  # the planted line
        return self.last(hidden)

    def forward(self, x):
        return checkpoint(self.block, x, use_reentrant=self.reentrant)  # the checkpoint


@pytest.mark.parametrize("reentrant", [False, True])
def test_fault_between_the_modules_of_a_checkpoint_is_in_neither(reentrant):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.Tanh(), CheckpointedMethod(reentrant=reentrant)))
    replay = run_step(model, batch()).replay()
    assert (replay.fidelity, replay.origin.op, replay.origin.module) == ("exact", "SqrtBackward0", "1.1")
    lines = [source_line(frame) for frame in replay.forward]
    assert lines[-1].endswith("# the planted line")
    assert any(line.endswith("# the checkpoint") for line in lines)
    assert replay.backward[-1].function == "CapturedStep.backward"


def test_last_module_name_has_no_wrapper_prefix():
    model = nn.Module()
    model.module = nn.Sequential(nn.Linear(4, 8), SquareRoot())
    model.forward = model.module.forward
    step = CapturedStep(model)
    step.backward(step.call(batch(), root=model.module).mean())
    assert step.replay().origin.module == "1"


def test_op_without_a_derivative_does_not_take_the_line_of_the_one_before():
    def then_a_constant(x):
        y = torch.sqrt((x - x) * x)
        torch.zeros(3)
        return y

    replay = run_step(around(then_a_constant), batch()).replay()
    assert source_line(replay.forward[-1]) == "y = torch.sqrt((x - x) * x)"


class Reciprocal(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return gradient / (x - x)  # the derivative's line


def test_own_function_shows_the_line_of_its_backward_below_the_training_loop():
    replay = run_step(around(Reciprocal.apply), batch()).replay()
    assert (replay.origin.op, replay.origin.module) == ("ReciprocalBackward", "1")
    assert source_line(replay.backward[-1]).endswith("# the derivative's line")
    assert replay.backward[-2].function == "CapturedStep.backward"


class CheckpointedFunction(nn.Module):
    def forward(self, x):
        return checkpoint(lambda h: Reciprocal.apply(h).tanh(), x, use_reentrant=True)  # the call


def test_own_function_in_a_reentrant_checkpoint_is_in_its_module():
    torch.manual_seed(0)
    replay = run_step(nn.Sequential(nn.Linear(4, 8), CheckpointedFunction()), batch()).replay()
    assert (replay.origin.op, replay.origin.module) == ("ReciprocalBackward", "1")
    assert source_line(replay.forward[-1]).endswith("# the call")
    assert source_line(replay.backward[-1]).endswith("# the derivative's line")


def test_fault_in_an_in_place_op_on_a_view_is_named_with_its_line():
    def root_of_a_column(x):
        x = ((x - x) * x).clone()
        x[:, 0].sqrt_()
        torch.zeros(3)
        return x

    replay = run_step(around(root_of_a_column), batch()).replay()
    assert (replay.origin.op, replay.origin.module) == ("CopySlices (sqrt_)", "1")
    assert source_line(replay.forward[-1]) == "x[:, 0].sqrt_()"


class SparseWords(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.root = nn.Embedding(10, 4, sparse=True), SquareRoot()

    def forward(self, words):
        return self.root(self.words(words))


@pytest.mark.filterwarnings("ignore:Sparse invariant checks")
def test_fault_that_reaches_only_a_sparse_gradient_is_named():
    replay = run_step(SparseWords(), torch.tensor([1, 1, 3])).replay()
    assert replay.fidelity == "exact"
    assert (replay.origin.op, replay.origin.module) == ("SqrtBackward0", "root")


def test_backward_hook_of_a_module_that_makes_nan_is_named_as_a_hook_with_its_line():
    model = around(torch.tanh)
    model[1].register_full_backward_hook(
        lambda module, inner, outer: (inner[0] / 0.0,)  # the hook's line
    )
    replay = run_step(model, batch()).replay()
    assert (replay.origin.phase, replay.origin.module) == ("backward", "1")
    assert replay.origin.op == "BackwardHookFunctionBackward (hook: div)"
    assert "# the hook's line" in source_line(replay.backward[-1])


def _mean_of_each_segment(x):
    segment = torch.tensor([0, 0, 1, 1, 2, 2])
    segment[4:] = 0
    counts = torch.zeros(3).index_add(0, segment, torch.ones(6))
    return torch.zeros(3, 8).index_add(0, segment, x) / counts[:, None]  # nothing in the last one


def _sum_of_parts(x):
    total = torch.tensor(0.0)
    total += x.detach().sum()
    return x * (total - total).reciprocal_()  # of zero


@pytest.mark.parametrize(("forward", "op"), [(_mean_of_each_segment, "div"), (_sum_of_parts, "reciprocal_")])
def test_fault_behind_a_tensor_of_constants_that_is_written_is_named(forward, op):
    replay = run_step(around(forward), batch()).replay()
    assert (replay.fidelity, replay.origin and replay.origin.op) == ("exact", op)
