"""The line of a loss that went wrong, in loops as people write them; and what must not happen again."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from journals import read_journal
from torch import Tensor, nn

import probe
from probe.wire import Event

FAULTY_STEP = 4
KINDS = ("nonfinite_loss", "nonfinite_gradient")


def make_model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))


def batch(step: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(step)
    return torch.randn(6, 4, generator=generator), torch.randint(3, (6,), generator=generator)


def fault_line(function: Callable[..., object]) -> int:
    lines, first = inspect.getsourcelines(function)
    (at,) = [index for index, line in enumerate(lines) if "# FAULT" in line]
    return first + at


def event_of(train: Callable[[nn.Module, torch.optim.Optimizer], None], spool: Path) -> Event:
    """The first non-finite event of a loop."""
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    with probe.watch(model, optimizer, spool=spool, connect="") as run:
        train(model, optimizer)
        assert run._guard.failures == 0
    (folder,) = spool.iterdir()
    return next(event for event in read_journal(folder).events if event.kind in KINDS)


def assert_origin(event: Event, function: Callable[..., object], op: str) -> None:
    assert event.origin is not None, event.message
    assert (event.origin.phase, event.origin.op, event.origin.module) == ("loss", op, None)
    frame = [frame for frame in event.stacks.forward if frame.file == __file__][-1]
    assert (frame.function, frame.line) == (function.__qualname__, fault_line(function))
    assert f"{Path(__file__).name}:{frame.line}" in event.message.splitlines()[0]


def own_nll(logits: Tensor, targets: Tensor) -> Tensor:
    probabilities = torch.softmax(logits, -1)
    picked = probabilities.gather(1, targets[:, None]).squeeze(1)
    return -torch.log(picked).mean()  # FAULT


def test_line_inside_a_function_of_the_script(spool: Path) -> None:
    def train(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        for step in range(FAULTY_STEP + 1):
            x, y = batch(step)
            optimizer.zero_grad()
            logits = model(x) * (1e5 if step == FAULTY_STEP else 1.0)
            loss = own_nll(logits, y)
            loss.backward()
            optimizer.step()

    event = event_of(train, spool)
    assert event.step == FAULTY_STEP
    assert_origin(event, own_nll, "log")
    assert [frame.function.rpartition(".")[2] for frame in event.stacks.forward][-2:] == ["train", "own_nll"]


def train_with_a_derivative(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    for step in range(FAULTY_STEP + 1):
        x, _ = batch(step)
        optimizer.zero_grad()
        out = model(x)
        if step == FAULTY_STEP:
            out = out * 0.0
        size = out.square().sum(1).sqrt()  # FAULT
        size.mean().backward()
        optimizer.step()


def test_line_whose_derivative_goes_wrong(spool: Path) -> None:
    assert_origin(event_of(train_with_a_derivative, spool), train_with_a_derivative, "SqrtBackward0")


def train_two_calls(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    for step in range(FAULTY_STEP + 1):
        x, _ = batch(step)
        optimizer.zero_grad()
        anchor, other = model(x), model(x if step == FAULTY_STEP else -x)
        gap = (anchor - other).square().sum(1)
        loss = torch.sqrt(gap).mean()  # FAULT
        (loss / 2).backward()
        optimizer.step()


def test_two_calls_of_the_model_in_one_loss(spool: Path) -> None:
    assert_origin(event_of(train_two_calls, spool), train_two_calls, "SqrtBackward0")


def train_under_autocast(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    total = 0.0
    for step in range(FAULTY_STEP + 1):
        x, _ = batch(step)
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            logits = model(x)
            if step == FAULTY_STEP:
                logits = logits - 1e4
            parts = []
            for row in logits.float():
                parts.append(row.exp().sum())
            loss = torch.stack(parts).log().mean()  # FAULT
            total += float(loss.detach())
        loss.backward()
        optimizer.step()


def train_with_the_loss_outside_of_autocast(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    for step in range(FAULTY_STEP + 1):
        x, y = batch(step)
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            logits = model(x)
        logits = logits @ torch.eye(3, dtype=logits.dtype) * (1e5 if step == FAULTY_STEP else 1.0)
        loss = own_nll(logits, y)
        loss.backward()
        optimizer.step()


def test_loss_outside_of_autocast(spool: Path) -> None:
    assert_origin(event_of(train_with_the_loss_outside_of_autocast, spool), own_nll, "log")


def test_loops_lists_and_autocast(spool: Path) -> None:
    assert_origin(event_of(train_under_autocast, spool), train_under_autocast, "log")


class Trainer:
    """As libraries have it: the loss is made in one method, backward called in another."""

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self.model, self.optimizer = model, optimizer
        self.engine = SimpleNamespace(backward=lambda loss: loss.backward())
        self.history: list[float] = []

    def compute_loss(self, x: Tensor, y: Tensor, factor: float) -> Tensor:
        return own_nll(self.model(x) * factor, y)

    def step(self, step: int) -> None:
        x, y = batch(step)
        loss = self.compute_loss(x, y, 1e5 if step == FAULTY_STEP else 1.0)
        self.history.append(loss.item())
        self.optimizer.zero_grad()
        self.engine.backward(loss)
        self.optimizer.step()


def test_trainer_with_methods_and_what_it_records_stays_recorded_once(spool: Path) -> None:
    trainers = []

    def train(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        trainers.append(Trainer(model, optimizer))
        for step in range(FAULTY_STEP + 1):
            trainers[0].step(step)

    assert_origin(event_of(train, spool), own_nll, "log")
    assert len(trainers[0].history) == FAULTY_STEP + 1


class Centres(nn.Module):
    """A loss with a state of its own, moved by every call."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("centre", torch.zeros(3))
        self.calls = 0

    def forward(self, logits: Tensor) -> Tensor:
        self.calls += 1
        self.centre = 0.9 * self.centre + 0.1 * logits.detach().mean(0)
        return torch.log(1.0 - (logits - self.centre).abs().mean())  # FAULT


def test_loss_module_is_as_before_afterwards(spool: Path) -> None:
    watched, plain = Centres(), Centres()

    def loop(criterion: Centres) -> Callable[[nn.Module, torch.optim.Optimizer], None]:
        def train(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
            for step in range(FAULTY_STEP + 1):
                x, _ = batch(step)
                loss = criterion(model(x) * (50.0 if step == FAULTY_STEP else 0.1))
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()

        return train

    model = make_model()
    loop(plain)(model, torch.optim.SGD(model.parameters(), lr=1e-3))
    event = event_of(loop(watched), spool)
    # Its state when the step began is no longer known: whether the loss comes out again is open.
    assert event.origin is None or event.origin.phase == "loss"
    assert watched.calls == plain.calls == FAULTY_STEP + 1
    assert torch.equal(watched.centre, plain.centre)


def test_values_bound_anew_since_are_not_taken_for_the_old_ones(spool: Path) -> None:
    def train(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        offset = torch.zeros(3)
        for step in range(FAULTY_STEP + 1):
            x, _ = batch(step)
            optimizer.zero_grad()
            out = model(x) - offset
            loss = torch.log(out.mean() - 100.0 if step == FAULTY_STEP else out.mean().exp())
            loss.backward()
            offset = out.detach().mean(0)
            optimizer.step()

    event = event_of(train, spool)
    lines = [frame.line for frame in event.stacks.forward]
    assert event.kind == "nonfinite_loss"
    # Judged while backward returns, before `offset` changes: either the right line, or none.
    assert not lines or lines[-1] == train.__code__.co_firstlineno + 6


def test_memory_of_the_script_is_not_written_by_the_replay(spool: Path) -> None:
    queue = torch.zeros(8)

    def push(value: Tensor) -> None:
        queue.copy_(queue.roll(1))
        queue[0] = value.detach()

    def with_queue(out: Tensor) -> Tensor:
        push(out.mean())
        return torch.log(out.mean() - 100.0) + queue.sum()

    def train(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        x, _ = batch(0)
        loss = with_queue(model(x))
        loss.backward()
        optimizer.step()

    event = event_of(train, spool)
    assert torch.count_nonzero(queue) == 1
    assert not event.stacks.forward


@pytest.mark.parametrize("mode", ["train", "raise"])
def test_weights_and_generators_stay_as_without_the_probe(mode: str, spool: Path) -> None:
    def train(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        for step in range(FAULTY_STEP):
            x, y = batch(step)
            optimizer.zero_grad()
            noise = torch.rand(1)
            loss = own_nll(model(x) * (1e5 if step == FAULTY_STEP - 1 else 1.0) + noise, y)
            loss.backward()
            if step < FAULTY_STEP - 1:
                optimizer.step()

    plain = make_model()
    torch.manual_seed(3)
    train(plain, torch.optim.SGD(plain.parameters(), lr=1e-3))
    state = torch.get_rng_state()
    watched = make_model()
    torch.manual_seed(3)
    optimizer = torch.optim.SGD(watched.parameters(), lr=1e-3)
    with probe.watch(
        watched, optimizer, spool=spool, connect="", mode="raise" if mode == "raise" else "detect"
    ):
        if mode == "raise":
            with pytest.raises(probe.AnomalyError):
                train(watched, optimizer)
        else:
            train(watched, optimizer)
    assert torch.equal(torch.get_rng_state(), state)
    for one, other in zip(plain.parameters(), watched.parameters(), strict=True):
        assert torch.equal(one, other)
        assert one.grad is not None and other.grad is not None
        assert torch.equal(one.grad.isnan(), other.grad.isnan())


@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_line_where_the_input_is_drawn_in_the_line_of_the_call(spool: Path, dropout: float) -> None:
    """Running `model(torch.randn(...))` again draws another input, and leaves other numbers to be drawn."""

    def train(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        model.append(nn.Dropout(dropout))
        for step in range(FAULTY_STEP + 1):
            optimizer.zero_grad()
            logits = model(torch.randn(6, 4))
            noise = torch.rand(6, 3)
            shift = 0.0 if step == FAULTY_STEP else 10.0
            loss = torch.log(logits.square() * 0.0 + shift + noise * shift).mean()  # FAULT
            loss.backward()
            optimizer.step()

    assert_origin(event_of(train, spool), train, "log")
