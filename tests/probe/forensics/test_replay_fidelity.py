"""A replay repeats the step bit for bit where it can, and says so where it cannot."""

import random
from dataclasses import dataclass

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from replayed_step import CapturedStep, Lambda, around, batch, run_step
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(3)


def test_batch_norm_in_place_relu_and_dropout_are_exact():
    model = nn.Sequential(
        nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(inplace=True), nn.Dropout(0.5), nn.Linear(8, 3)
    )
    assert run_step(model, batch(32)).replay().fidelity == "exact"


def test_three_accumulated_micro_batches_are_exact():
    model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.3), nn.Linear(8, 3))
    step = CapturedStep(model)
    for number in range(3):
        step.backward((step.call(batch() + number) ** 2).mean() / 3)
    assert step.replay().fidelity == "exact"


def test_model_called_three_times_for_one_loss_is_exact():
    step = CapturedStep(around(torch.tanh))
    outputs = [step.call(batch() + number) for number in range(3)]
    step.backward(sum((output**2).mean() for output in outputs))
    assert step.replay().fidelity == "exact"


def test_one_call_then_three_calls_for_one_loss_are_exact():
    step = CapturedStep(around(torch.tanh))
    step.backward(step.call(batch()).pow(2).mean())
    outputs = [step.call(batch() * number) for number in (0.1, 3.0, 7.0)]
    step.backward(sum((output**2).mean() for output in outputs))
    assert step.replay().fidelity == "exact"


def test_two_backwards_through_one_graph_are_exact():
    step = CapturedStep(around(torch.tanh))
    output = step.call(batch())
    output.mean().backward(retain_graph=True)
    step.backward((output**2).mean())
    assert step.replay().fidelity == "exact"


@dataclass
class Output:
    loss: Tensor
    logits: Tensor


class WithLoss(nn.Module):
    def __init__(self, *, kind):
        super().__init__()
        self.body, self.kind = nn.Linear(4, 3), kind

    def forward(self, x, *, labels):
        logits = self.body(x)
        loss = F.cross_entropy(logits, labels)
        return Output(loss, logits) if self.kind == "dataclass" else {"loss": loss, "logits": logits}


@pytest.mark.parametrize("kind", ["dataclass", "dict"])
@pytest.mark.parametrize("outside", [False, True])
def test_loss_computed_from_another_output_is_not_counted_twice(kind, outside):
    step = CapturedStep(WithLoss(kind=kind))
    output = step.call(batch(), labels=torch.tensor([0, 1, 2, 0, 1, 2]))
    loss, logits = (output.loss, output.logits) if kind == "dataclass" else output.values()
    step.backward(loss + logits.pow(2).mean() if outside else loss)
    assert step.replay().fidelity in ({"exact", "confirmed"} if outside else {"exact"})


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoint_is_exact(reentrant):
    inner = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5), nn.Tanh())
    model = nn.Sequential(nn.Linear(4, 8), Lambda(None), inner)
    model.forward = lambda x: checkpoint(inner, model[0](x), use_reentrant=reentrant)
    assert run_step(model, batch()).replay().fidelity == "exact"


def test_bf16_autocast_is_exact():
    model = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    step = CapturedStep(model)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = step.call(torch.randn(2, 5, 8)).float().pow(2).mean()
    step.backward(loss)
    assert step.replay().fidelity == "exact"


def test_trip_inside_autocast_after_a_backward_outside_of_it_is_exact():
    step = CapturedStep(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = step.call(torch.randn(2, 5, 8)).float().pow(2).mean()
    step.backward(loss)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert step.replay().fidelity == "exact"


def test_bf16_autocast_still_open_at_the_trip_is_exact():
    step = CapturedStep(nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 3)))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        step.backward(step.call(batch()).float().pow(2).mean())
        assert step.replay().fidelity == "exact"


class Sentence(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.lstm = (
            nn.Embedding(11, 6),
            nn.LSTM(6, 6, batch_first=True, num_layers=2, dropout=0.2),
        )
        self.head = nn.Linear(6, 11, bias=False)
        self.head.weight = self.words.weight

    def forward(self, words, lengths):
        packed = nn.utils.rnn.pack_padded_sequence(self.words(words), lengths, batch_first=True)
        return self.head(self.lstm(packed)[0].data)


def test_tied_embedding_with_packed_lstm_is_exact():
    step = run_step(Sentence(), torch.randint(11, (3, 5)), torch.tensor([5, 4, 2]))
    assert step.replay().fidelity == "exact"


class Codebook(nn.Module):
    """A buffer that the forward both reads and changes, as the EMA of a VQ-VAE is."""

    def __init__(self, *, in_place):
        super().__init__()
        self.body, self.in_place = nn.Linear(4, 4), in_place
        self.register_buffer("mean", torch.ones(4))

    def forward(self, x):
        y = self.body(x) * self.mean.clone()
        fresh = self.mean * 0.5 + y.detach().mean(0)
        if self.in_place:
            self.mean.copy_(fresh)
        else:
            self.mean = fresh
        return y


@pytest.mark.parametrize("in_place", [True, False])
def test_buffer_that_forward_reads_and_changes_is_exact_from_the_second_call(in_place):
    model = Codebook(in_place=in_place)
    run_step(model, batch())
    model.zero_grad()
    assert run_step(model, batch()).replay().fidelity == "exact"


def test_old_and_new_spectral_norm_are_exact_from_the_second_call():
    old = nn.utils.spectral_norm(nn.Linear(4, 4))
    model = nn.Sequential(old, nn.utils.parametrizations.spectral_norm(nn.Linear(4, 4)))
    run_step(model, batch())
    model.zero_grad()
    assert run_step(model, batch()).replay().fidelity == "exact"


@pytest.mark.parametrize("draw", [random.random, lambda: float(np.random.rand())])
def test_other_random_numbers_in_the_forward_are_exact_from_the_third_call(draw):
    model = around(lambda x: x * draw())
    for _ in range(3):
        model.zero_grad()
        step = run_step(model, batch())
    assert step.replay().fidelity == "exact"


class Counting(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.calls = nn.Linear(4, 4), 0

    def forward(self, x):
        self.calls += 1
        return self.body(x) * self.calls + self.body(x) ** 2


class Recurrent(nn.Module):
    """Carries a hidden state from step to step, and counts its calls."""

    def __init__(self, *, in_place):
        super().__init__()
        self.cell, self.in_place = nn.GRUCell(4, 4), in_place
        self.hidden, self.calls = torch.zeros(6, 4), 0

    def forward(self, x):
        self.calls += 1
        y = self.cell(x, self.hidden.clone()) / self.calls
        if self.in_place:
            self.hidden.copy_(y.detach())
        else:
            self.hidden = y.detach()
        return y


@pytest.mark.parametrize("in_place", [True, False])
def test_attributes_carried_from_step_to_step_are_exact_from_the_second_call(in_place):
    model = Recurrent(in_place=in_place)
    run_step(model, batch())
    model.zero_grad()
    step = run_step(model, batch())
    hidden, content = model.hidden, model.hidden.clone()
    assert step.replay().fidelity == "exact"
    assert model.hidden is hidden
    assert torch.equal(hidden, content)
    assert model.calls == 2


def test_attribute_that_changes_finite_gradients_could_not_be_reproduced():
    replay = run_step(Counting(), batch(), loss=lambda y: y.pow(2).mean()).replay()
    assert (replay.fidelity, replay.origin) == ("could not reproduce", None)


def test_gradients_multiplied_by_a_scalar_are_confirmed():
    step = run_step(around(torch.tanh), batch())
    scaled = {name: gradient * 1024 for name, gradient in step.gradients().items()}
    assert step.replay(gradients=scaled).fidelity == "confirmed"


def test_gradients_of_another_step_could_not_be_reproduced():
    step = run_step(around(torch.tanh), batch())
    other = {name: torch.full_like(gradient, float("nan")) for name, gradient in step.gradients().items()}
    replay = step.replay(gradients=other)
    assert (replay.fidelity, replay.origin) == ("could not reproduce", None)


def _spoilt_by_the_average(step):
    return {name: torch.full_like(gradient, float("nan")) for name, gradient in step.gradients().items()}


def test_bad_average_of_good_gradients_came_from_another_rank():
    step = run_step(around(torch.tanh), batch())
    replay = step.replay(gradients=_spoilt_by_the_average(step), stage="reduced")
    assert (replay.fidelity, replay.origin) == ("could not reproduce", None)
    assert "came from another rank" in replay.reason


@pytest.mark.parametrize("stage", ["local", "unscaled"])
def test_bad_gradients_that_are_no_average_came_from_no_other_rank(stage):
    step = run_step(around(torch.tanh), batch())
    assert "another rank" not in step.replay(gradients=_spoilt_by_the_average(step), stage=stage).reason


def test_other_rank_is_not_blamed_where_a_backward_goes_past_the_outputs():
    model = around(torch.tanh)
    step = CapturedStep(model)
    step.backward(step.call(batch()).mean() + model[0].weight.square().sum())
    assert "another rank" not in step.replay(gradients=_spoilt_by_the_average(step), stage="reduced").reason


def test_batch_changed_in_place_after_the_forward_is_declined():
    x = batch()
    step = run_step(around(torch.tanh), x)
    x.zero_()
    replay = step.replay()
    assert replay.fidelity == "declined"
    assert "changed in place" in replay.reason


def test_forward_that_writes_to_foreign_memory_is_declined_before_it_writes():
    total = torch.zeros(8)

    def accumulate(x):
        total.add_(x.detach().sum(0))
        return x

    step = run_step(around(accumulate), batch())
    before = total.clone()
    replay = step.replay()
    assert replay.fidelity == "declined"
    assert "add_ would change a tensor" in replay.reason
    assert torch.equal(total, before)


def test_forward_that_writes_to_an_array_of_numpy_is_declined_before_it_writes():
    array = np.zeros(8, dtype=np.float32)

    def accumulate(x):
        torch.from_numpy(array).add_(x.detach().sum(0))
        return x

    step = run_step(around(accumulate), batch())
    before = array.copy()
    assert step.replay().fidelity == "declined"
    assert (array == before).all()


def test_parameters_updated_since_the_forward_are_declined():
    replay = run_step(around(torch.tanh), batch()).replay(parameter_stamp=1)
    assert replay.fidelity == "declined"
    assert "updated after the forward" in replay.reason


def test_forward_that_raises_in_the_replay_is_declined():
    calls = []

    def once(x):
        calls.append(1)
        if len(calls) > 1:
            raise KeyError("only once")
        return x

    replay = run_step(around(once), batch()).replay()
    assert replay.fidelity == "declined"
    assert "KeyError" in replay.reason


def test_replay_past_its_time_limit_is_declined():
    replay = run_step(around(torch.tanh), batch()).replay(limit_s=-1.0)
    assert replay.fidelity == "declined"
    assert "time limit" in replay.reason


def test_compiled_model_is_replayed_eagerly_and_exact():
    model = around(torch.tanh)
    compiled = torch.compile(model, backend="eager")
    step = CapturedStep(model)
    step.backward(step.call(batch(), root=compiled).pow(2).mean())
    assert step.replay().fidelity == "exact"
