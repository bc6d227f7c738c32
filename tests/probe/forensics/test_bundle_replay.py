"""A step comes back bit for bit from its bundle, in a model built anew with other weights."""

import random

import pytest
import torch
from bundle_models import Carrying, Encoder, Planted, Sentence, WithLoss
from bundled_step import bundle_of
from replayed_step import CapturedStep, batch, run_step, source_line
from torch import nn

from probe.errors import BundleError
from probe.forensics.bundle.reproduce import Reproduction, read_bundle, reproduce

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(3)
    random.seed(3)


def again(step: CapturedStep, spool, build, **facts) -> Reproduction:
    """Write the step's bundle, forget everything that it depended on, and replay it in a new model."""
    folder = bundle_of(step, spool, **facts)
    torch.manual_seed(99)
    random.seed(99)
    return reproduce(read_bundle(folder), folder, build)


def linear() -> nn.Module:
    return nn.Linear(4, 3)


def assert_exact(done: Reproduction, *, outputs: int):
    assert (done.replay.fidelity, done.is_exact) == ("exact", True), done.replay.reason
    assert (done.outputs.identical, done.outputs.different, done.outputs.unknown) == (outputs, 0, 0)


def test_planted_nan_has_the_same_origin_bit_for_bit(spool):
    step = run_step(Planted(), batch(32), shift=1.0)
    real = step.replay()
    done = again(step, spool, Planted)
    assert_exact(done, outputs=1)
    assert (done.replay.origin, done.replay.operands) == (real.origin, real.operands)
    assert source_line(done.replay.forward[-1]).endswith("# planted")
    assert done.replay.propagated_to == real.propagated_to


def test_healthy_step_is_exact_and_has_no_origin(spool):
    done = again(run_step(Planted(), batch(32)), spool, Planted)
    assert_exact(done, outputs=1)
    assert (done.replay.origin, done.gradients) == (None, 6)
    assert done.notes == ()


def test_another_random_state_would_not_have_been_exact(spool):
    step = run_step(Planted(), batch(32))
    step.captures[0].state = step.captures[0].state._replace(rng_cpu=torch.get_rng_state())
    done = again(step, spool, Planted)
    assert (done.replay.fidelity, done.is_reproduced) == ("could not reproduce", False)
    assert done.outputs.different == 1
    assert done.outputs.largest_difference > 0.1


def test_micro_steps_and_calls_of_one_backward_are_exact(spool):
    step = CapturedStep(Planted())
    step.backward(step.call(batch(16)).pow(2).mean() / 3)
    outputs = [step.call(batch(16) + number) for number in range(2)]
    step.backward(sum(output.abs().mean() for output in outputs))
    assert_exact(again(step, spool, Planted), outputs=3)


def test_loss_among_the_outputs_is_exact(spool):
    given = {"x": batch(), "labels": torch.tensor([0, 1, 2, 0, 1, 2])}
    step = run_step(WithLoss(), given, scale=2.5, loss=lambda output: output.loss)
    assert_exact(again(step, spool, WithLoss), outputs=2)


def test_tied_embedding_with_packed_lstm_is_exact(spool):
    step = run_step(Sentence(), torch.randint(11, (3, 5)), torch.tensor([5, 4, 2]))
    assert_exact(again(step, spool, Sentence), outputs=1)


def test_what_a_forward_changes_is_as_it_was_before(spool):
    model = Carrying()
    for _ in range(4):
        model.zero_grad()
        step = run_step(model, batch())
    assert_exact(again(step, spool, Carrying), outputs=1)


def test_bf16_autocast_with_an_infinite_mask_is_exact(spool):
    step = CapturedStep(Encoder())
    mask = torch.full((5, 5), -torch.inf).triu(1)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = step.call(torch.randn(2, 5, 8), mask).float().pow(2).mean()
    assert_exact(again(step.backward(loss), spool, Encoder), outputs=1)


def test_model_in_bf16_with_a_frozen_part_in_evaluation_is_exact(spool):
    model = Planted().to(torch.bfloat16)
    model.norm.eval()
    model.enter.requires_grad_(False)
    model.drop.p = 0.25
    step = run_step(model, batch(32).to(torch.bfloat16))
    assert_exact(again(step, spool, Planted), outputs=1)


def test_sparse_gradient_and_a_transposed_input_are_exact(spool):
    class Words(nn.Module):
        def __init__(self):
            super().__init__()
            self.words, self.head = nn.Embedding(50, 4, sparse=True), nn.Linear(4, 2)

        def forward(self, tokens, weights):
            return self.head(self.words(tokens)) @ weights

    step = run_step(Words(), torch.randint(50, (6, 3)), torch.randn(5, 2).t())
    assert step.gradients()["words.weight"].is_sparse
    assert_exact(again(step, spool, Words), outputs=1)


def test_output_that_another_call_was_given_is_traced_back_to_its_maker(spool):
    class Pair(nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.two = Planted(), nn.Linear(3, 3)

    pair = Pair()
    step = CapturedStep(pair)
    middle = step.call(batch(16), 1.0, root=pair.one)
    step.backward(step.call(middle.detach(), root=pair.two).mean() + middle.mean())
    real = step.replay()
    done = again(step, spool, Pair)
    assert_exact(done, outputs=2)
    assert (done.replay.origin.op, done.replay.origin.module) == ("sqrt", "one")
    assert done.replay.origin == real.origin


def test_buffer_that_the_model_got_during_the_run_is_given_to_the_new_one(spool):
    class Growing(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = nn.Linear(4, 4)

        def forward(self, x):
            if not hasattr(self, "table"):
                self.register_buffer("table", torch.randn(4), persistent=False)
            return self.body(x) * self.table

    model = Growing()
    run_step(model, batch())
    model.zero_grad()
    done = again(run_step(model, batch()), spool, Growing)
    assert_exact(done, outputs=1)
    assert "the buffer table was added" in done.notes[0]


def test_fault_in_the_loss_is_the_one_that_the_run_found(spool):
    step = run_step(nn.Linear(4, 3), batch(), loss=lambda output: output.log().mean())
    real = step.replay()
    assert (real.origin.phase, real.origin.op) == ("loss", "LogBackward0")
    done = again(step, spool, lambda: nn.Linear(4, 3), replay=real)
    assert_exact(done, outputs=1)
    assert done.replay.origin == real.origin


def test_fault_in_the_loss_that_the_run_did_not_find_is_not_named(spool):
    done = again(run_step(nn.Linear(4, 3), batch(), loss=lambda y: y.log().mean()), spool, linear)
    assert_exact(done, outputs=1)
    assert done.replay.origin is None
    assert "between the model's outputs and the loss" in done.replay.reason


def test_large_output_that_is_gone_is_not_compared(spool):
    step = run_step(nn.Linear(4, 50_000), batch())
    done = again(step, spool, lambda: nn.Linear(4, 50_000))
    assert (done.replay.fidelity, done.outputs.unknown, done.is_exact) == ("exact", 1, False)


# ---------------------------------------------------------------------------- forwards that raise


def raising_step(*arguments) -> CapturedStep:
    step = CapturedStep(Planted())
    step.backward(step.call(batch(16)).mean())
    with pytest.raises(RuntimeError, match="mat1 and mat2"):
        step.call(*arguments)
    return step


def test_exception_of_a_forward_is_raised_again(spool):
    done = again(raising_step(batch(6, 5)), spool, Planted, kind="exception", subject="RuntimeError")
    assert (done.is_reproduced, done.has_raised, done.is_exact) == (True, True, False)
    assert done.replay.reason.startswith("RuntimeError: mat1 and mat2 shapes cannot be multiplied")
    assert done.replay.forward[0].function == "Planted.forward"
    assert done.outputs.identical == 1


def test_exception_that_does_not_come_again_is_not_reproduced(spool):
    class Wider(Planted):
        def forward(self, x, shift=0.0):
            return super().forward(x[:, :4], shift)

    done = again(raising_step(batch(6, 5)), spool, Wider, kind="exception", subject="RuntimeError")
    assert (done.is_reproduced, done.replay.reason) == (
        False,
        "the forward returned, and raised no RuntimeError",
    )


# ---------------------------------------------------------------------------- models that do not fit


class Tied(nn.Module):
    def __init__(self, *, is_tied=True):
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)
        if is_tied:
            self.b.weight = self.a.weight

    def forward(self, x):
        return self.b(self.a(x))


@pytest.mark.parametrize(
    ("model", "build", "said"),
    [
        (Planted, lambda: Planted(9), r"enter.weight is \[9, 4\], in the run \[8, 4\]"),
        (Planted, lambda: nn.Linear(4, 3), "the model lacks enter.bias, .* and 0 more|the model lacks enter"),
        (lambda: nn.Linear(4, 3), Planted, "the bundle lacks enter.bias"),
        (Tied, lambda: Tied(is_tied=False), "not the same tensor .* b.weight"),
        (lambda: Tied(is_tied=False), Tied, "share a tensor"),
    ],
)
def test_another_model_is_refused_with_what_differs(spool, model, build, said):
    with pytest.raises(BundleError, match=said):
        again(run_step(model(), batch()), spool, build)
