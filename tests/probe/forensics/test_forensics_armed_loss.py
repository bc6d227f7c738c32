"""A loss that is watched while it is made, against losses whose ops are computed one by one."""

import re
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from loss_programs import finite, random_program, truth_of
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from probe.forensics.loss.armed_loss import ArmedLoss
from probe.forensics.loss.loss_backward import LossBackward
from probe.forensics.loss.loss_watch import MAX_OPS, LossWatch, RunningModules
from probe.guard import Guard

MADE_BEFORE = torch.tensor([1.0, torch.nan, 2.0])
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")
PROGRAMS = 100


def depth():
    return torch._C._len_torch_dispatch_stack()


def make_watch(roots=(), intended=()):
    return LossWatch(RunningModules(roots), intended=intended, guard=Guard(), budget_ns=10**10)


def watched(make, output, *, roots=()):
    """A loss made under a watch of its own."""
    watch = make_watch(roots)
    assert watch.enter()
    try:
        loss = make(output)
    finally:
        watch.leave()
    assert depth() == 0 and watch._guard.failures == 0
    return loss, watch


def plain_name(op):
    """ "softmax" of "_softmax" and of "SoftmaxBackward0"."""
    return re.sub(r"Backward\d*$", "", op).replace("_", "").lower()


def test_random_losses_are_what_they_are_without_a_watch_and_their_faults_are_the_reference_s():
    told = bad = 0
    for seed in range(PROGRAMS):
        program = random_program(seed)
        leaf = program.outputs.clone().requires_grad_()
        plain = program.run(leaf * 1)
        loss, watch = watched(program.run, leaf * 1)
        assert torch.equal(plain.isnan(), loss.isnan()) and torch.equal(plain.nan_to_num(), loss.nan_to_num())
        origin = watch.origin_of([loss])
        truth = truth_of(program)
        if finite(loss):
            assert origin is None
            continue
        bad += 1
        if origin is not None:
            told += 1
            assert plain_name(watch.records[origin].op) == plain_name(truth.forward[0]), seed
    assert told >= 0.9 * bad > 0


def test_random_losses_with_a_bad_gradient_are_told_by_the_node_that_made_it():
    told = bad = 0
    for seed in range(PROGRAMS):
        program = random_program(seed)
        truth = truth_of(program)
        leaf = program.outputs.clone().requires_grad_()
        output = leaf * 1
        loss, watch = watched(program.run, output)
        if not finite(loss) or loss.grad_fn is None:
            continue
        backward = LossBackward(watch, [])
        backward.follow([loss])
        loss.backward()
        node = backward.bad_node()
        backward.release()
        if not truth.bad_gradient:
            continue
        bad += 1
        if node is not None:
            told += 1
            assert node.note.node == truth.backward[0], seed
    assert told >= 0.9 * bad > 0


def bad_node_of(make, output, *, parameters=()):
    loss, watch = watched(make, output)
    backward = LossBackward(watch, parameters)
    backward.follow([loss])
    loss.backward()
    node = backward.bad_node()
    backward.release()
    return node


def ones(*shape):
    return torch.ones(*shape, requires_grad=True) * 1


def on_another_thread(function, *arguments):
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(function, *arguments).result()


def test_origin_has_the_line_and_what_the_op_read_and_made():
    loss, watch = watched(lambda output: (output - 1).log().mean(), ones(3))
    note = watch.notes[watch.origin_of([loss])]
    code, _ = note.place.frames[-1]
    assert (note.place.op, note.place.module, code.co_filename) == ("log", None, __file__)
    assert note.operands == ("input 0: float32 [3], 0 to 0, 3 zeros", "output 0: float32 [3], 3 -Inf")


def test_operands_of_an_op_in_place_are_those_from_before_it():
    loss, watch = watched(lambda output: (output * 0).div_(0.0).sum(), ones(2))
    note = watch.notes[watch.origin_of([loss])]
    assert note.operands == ("input 0: float32 [2], 0 to 0, 2 zeros", "output 0: float32 [2], 2 NaN")


@pytest.mark.parametrize(
    ("value", "make"),
    [
        (torch.nan, lambda output: (output * 2).log().mean()),
        (torch.inf, lambda output: (output - output).mean()),
        (1.0, lambda output: (output * MADE_BEFORE).mean()),
        (1.0, lambda output: (output + on_another_thread(torch.log, output.detach() - 1)).mean()),
        (1.0, lambda output: (output + on_another_thread(torch.sqrt, output.detach() - 2)).mean()),
    ],
)
def test_values_that_were_bad_before_or_made_out_of_sight_are_blamed_on_no_op(value, make):
    loss, watch = watched(make, torch.full((3,), value, requires_grad=True) * 1)
    assert not finite(loss)
    assert watch.origin_of([loss]) is None


def test_op_inside_of_a_vectorised_function_is_named():
    loss, watch = watched(lambda output: torch.vmap(lambda x: (x - 1).log())(output).mean(), ones(3))
    assert watch.records[watch.origin_of([loss])].op == "log"


def test_masks_are_no_origin_but_what_is_left_with_nothing_but_masks_is():
    mask = torch.tensor([[True, True], [False, True]])

    def attention(output, *, mask=mask):
        return output.masked_fill(mask, -torch.inf).softmax(-1).sum()

    loss, watch = watched(attention, ones(2, 2))
    assert watch.records[watch.origin_of([loss])].op == "_softmax"
    loss, watch = watched(lambda output: attention(output, mask=mask[1]), ones(2, 2))
    assert finite(loss) and watch.origin_of([loss]) is None


def test_part_of_the_model_that_the_loss_calls_is_named():
    class Head(nn.Module):
        def forward(self, x):
            return torch.log(x - 1)

    model = nn.Sequential(nn.Identity(), Head())
    loss, watch = watched(lambda output: model[1](output).mean(), ones(2), roots=[model])
    assert watch.notes[watch.origin_of([loss])].place.module == "1"


def test_model_that_is_evaluated_meanwhile_is_not_looked_at():
    model = nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 3))

    def make(output):
        with torch.no_grad():
            model(output)
        return output.mean()

    _, watch = watched(make, ones(3), roots=[model])
    assert watch.count == 1


def test_memory_of_a_bad_value_that_is_used_again_out_of_sight_is_not_taken_for_it():
    class Spoilt(nn.Module):
        def forward(self, x):
            return torch.full_like(x, torch.nan)

    model = Spoilt()

    def make(output):
        below = output.detach() - 1
        below.log()
        with torch.no_grad():
            spoilt = model(output)
        return (output + spoilt).mean()

    # The system takes back memory of this size at once, and gives it out at the same address.
    loss, watch = watched(make, ones(1_000_000), roots=[model])
    assert len(watch.records) > 1 and watch.origin_of([loss]) is None


def test_derivative_that_the_loss_asks_for_is_named_by_its_node():
    def penalty(output):
        root = (output - 1).sqrt()
        (gradient,) = torch.autograd.grad(root.sum(), output, create_graph=True)
        return gradient.mean()

    loss, watch = watched(penalty, ones(2))
    note = watch.notes[watch.origin_of([loss])]
    assert (note.node, note.backward) == ("SqrtBackward0", True)
    assert note.place.frames[-1][0].co_name == "penalty"


def test_gradient_that_a_hook_of_the_script_spoils_is_blamed_on_no_node():
    def make(output):
        middle = output.exp()
        middle.register_hook(lambda gradient: gradient * torch.nan)
        return middle.log().mean()

    assert bad_node_of(make, ones(2)) is None


def test_bad_gradient_that_does_not_reach_the_model_is_nobody_s():
    aside = torch.zeros(2, requires_grad=True)
    assert bad_node_of(lambda output: (output * 0.5).mean() + aside.sqrt().mean(), ones(2)) is None
    assert not torch.isfinite(aside.grad).all()


def test_bad_gradient_of_a_parameter_in_the_loss_is_told():
    scale = nn.Parameter(torch.zeros(2))
    node = bad_node_of(lambda output: output.mean() + scale.sqrt().mean(), ones(2), parameters=[scale])
    assert node.note.node == "SqrtBackward0"
    assert node.note.operands[0] == "kept of the forward 0: float32 [2], 0 to 0, 2 zeros"


class Counting(TorchDispatchMode):
    """A mode of the script's own."""

    @classmethod
    def _should_skip_dynamo(cls):
        return False

    def __init__(self):
        super().__init__()
        self.ops = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.ops.append(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))


def test_watch_stays_away_where_a_mode_of_the_script_is_active():
    with Counting() as mode:
        watch = make_watch()
        assert not watch.enter()
        torch.ones(2).log()
        watch.leave()
        assert depth() == 1
    assert (depth(), mode.ops, watch.count) == (0, ["ones", "log"], 0)


def test_mode_that_is_left_after_the_watch_still_works_and_sees_none_of_its_ops():
    watch, mode = make_watch(), Counting()
    watch.enter()
    mode.__enter__()
    torch.ones(2).log()
    watch.leave()
    torch.ones(2).exp()
    mode.__exit__(None, None, None)
    assert (depth(), mode.ops, watch.count) == (0, ["ones", "log", "ones", "exp"], 2)


def test_mode_that_somebody_else_has_taken_off_is_not_looked_for():
    watch = make_watch()
    watch.enter()
    torch._C._pop_torch_dispatch_stack(None)
    watch.leave()
    assert depth() == 0 and watch.is_over


def test_watch_that_another_thread_ends_takes_itself_off_at_the_next_op():
    watch = make_watch()
    watch.enter()
    on_another_thread(watch.leave)
    torch.ones(2).log()
    assert depth() == 0
    assert sys.getprofile() is None and watch.count == 0


def test_loss_of_very_many_ops_is_not_watched_to_its_end():
    watch = make_watch()
    watch.enter()
    value = torch.ones(())
    for _ in range(MAX_OPS + 2):
        value = value * 1.0
    assert depth() == 0 and watch.count == MAX_OPS


def test_tensor_that_stands_for_a_number_is_used_as_without_a_watch():
    kept = (ones(2) * 0.25).grad_fn

    def make(output):
        is_quarter = (kept._saved_other == 0.25).float()
        return output.sum() * float(kept._saved_other) + is_quarter + (-kept._saved_other)

    loss, _ = watched(make, ones(2))
    assert (float(loss), loss.dtype) == (0.5 + 1 - 0.25, make(ones(2)).dtype)


def test_nested_tensors_are_passed_by():
    def make(output):
        nested = torch.nested.as_nested_tensor([output, output * 0])
        return torch.nested.to_padded_tensor(nested, 0.0).mean().log()

    loss, watch = watched(lambda output: make(output) - 1, ones(3))
    assert torch.equal(loss, make(ones(3)) - 1)
    assert watch.records == {}


def test_ops_of_other_threads_and_of_transforms_run_as_they_are():
    def make(output):
        inside = torch.vmap(torch.func.grad(torch.sin))(output)
        return inside.sum() + on_another_thread(torch.sin, output.detach()).sum()

    loss, watch = watched(make, ones(3))
    assert torch.equal(loss, make(ones(3)))
    assert watch.records == {}


def test_function_that_is_compiled_meanwhile_is_compiled_as_without_a_watch():
    compiled = []

    def keep(graph, examples):
        compiled.append(graph)
        return graph

    function = torch.compile(lambda x: (x.sin() * 2).exp().sum(), backend=keep)
    loss, _ = watched(function, ones(3))
    assert torch.equal(loss, function(ones(3)))
    assert len(compiled) == 1


def test_backward_that_was_not_the_model_s_leaves_no_hook_on_its_graph():
    armed = ArmedLoss(Guard())
    armed.is_on = True
    output = torch.ones(3, requires_grad=True) * 1
    armed.enter()
    loss = output.exp().sum()
    armed.leave()
    armed.begin_backward([loss], 0)
    (sending,) = armed._sending
    assert sending.nodes._handles
    armed.pass_by(0)
    armed.stop()
    assert not sending.nodes._handles and not sending.nodes._nodes
