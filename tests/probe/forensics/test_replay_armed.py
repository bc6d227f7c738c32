"""A loss whose origin nothing can tell at first: the next one is watched, in loops as people write them."""

from __future__ import annotations

import gc
import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from journals import read_journal
from torch import Tensor, nn

import probe
from probe.forensics.loss.armed_loss import ARMS, STEPS
from probe.forensics.unnoticed import is_replaying
from probe.session import Probe
from probe.wire import Event

pytestmark = pytest.mark.usefixtures("one_thread", "nothing_switched_off")
KINDS = ("nonfinite_loss", "nonfinite_gradient")
FAULTY = (2, 5)
"""Two steps of one episode."""
calls: list[int] = []


def depth() -> int:
    return int(torch._C._len_torch_dispatch_stack())


class Unseen(nn.Module):
    """Asserts that nobody looks while the model runs, but a replay."""

    def forward(self, x: Tensor) -> Tensor:
        assert not depth() or is_replaying() or not self.training
        return x


def make_model(width: int = 3) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), Unseen(), nn.Linear(8, width))


def batch(step: int, rows: int = 6) -> Tensor:
    return torch.randn(rows, 4, generator=torch.Generator().manual_seed(step))


def unclear(out: Tensor, is_faulty: bool) -> Tensor:
    """Two ops may have made an infinity, the graph keeps neither value, and the lines cannot run again."""
    while True:
        calls.append(len(calls))
        size = torch.tanh(out) * 0.5
        if is_faulty:
            size = size.sign().abs()
        return (torch.erfinv(size) + torch.erfinv(torch.tanh(out) * 0.1)).mean()  # FAULT


def unclear_derivative(out: Tensor, is_faulty: bool) -> Tensor:
    """Two ops make an infinity of a finite gradient; the last one of the loss does so first."""
    while True:
        calls.append(len(calls))
        size = (out * (0.0 if is_faulty else 1.0)).abs().sum(1)
        root = size.pow(0.5).mean()
        return root + size.square().sum().sqrt()  # FAULT


def fault_line(function: Callable[..., object]) -> int:
    lines, first = inspect.getsourcelines(function)
    (at,) = [index for index, line in enumerate(lines) if "# FAULT" in line]
    return first + at


class Loop:
    """One training, watched or not."""

    def __init__(self, *, width: int = 3) -> None:
        self.model = make_model(width)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-2)
        self.run: Probe | None = None

    @property
    def is_armed(self) -> bool:
        return self.run is not None and self.run._incidents.armed.is_on

    def update(self, loss: Tensor) -> None:
        """Backward, and a step where the gradients are finite."""
        loss.backward()
        assert depth() == 0
        if nn.utils.clip_grad_norm_(self.model.parameters(), 1.0).isfinite():
            self.optimizer.step()
        self.optimizer.zero_grad()

    def loss(self, step: int, make: Callable[[Tensor, bool], Tensor] = unclear, rows: int = 6) -> Tensor:
        out = self.model(batch(step, rows))
        assert depth() == self.is_armed
        return make(out, step in FAULTY)


def events_of(spool: Path, train: Callable[[Loop], None], loop: Loop | None = None) -> list[Event]:
    """The non-finite events of a training, each in its last state."""
    loop = loop or Loop()
    with probe.watch(loop.model, loop.optimizer, spool=spool, connect="") as run:
        loop.run = run
        train(loop)
        assert run._guard.failures == 0
    assert depth() == 0
    (folder,) = spool.iterdir()
    return [event for event in read_journal(folder).latest_events if event.kind in KINDS]


def plainly(make: Callable[[Tensor, bool], Tensor], rows: int = 6, steps: int = 8) -> Callable[[Loop], None]:
    def train(loop: Loop) -> None:
        for step in range(steps):
            loop.update(loop.loss(step, make, rows))

    return train


def assert_named(events: list[Event], function: Callable[..., object], op: str) -> None:
    first, second = events
    assert (first.step, first.origin, second.step) == (FAULTY[0], None, FAULTY[1])
    assert "Origin not determined" in first.message and "; armed: " in first.message
    assert second.origin is not None, second.message
    assert (second.origin.phase, second.origin.op, second.origin.module) == ("loss", op, None)
    frame = second.stacks.forward[-1]
    assert (frame.file, frame.function, frame.line) == (
        __file__,
        function.__qualname__,
        fault_line(function),
    )
    assert f"{Path(__file__).name}:{frame.line}" in second.message.splitlines()[0]
    assert "Seen in the step itself" in second.message
    assert second.stacks.backward[-1].function == Loop.update.__qualname__


def test_second_occurrence_names_the_op_its_line_and_what_it_read(spool: Path) -> None:
    events = events_of(spool, plainly(unclear))
    assert_named(events, unclear, "erfinv")
    assert "input 0: float32 [6, 3], 1 to 1\noutput 0: float32 [6, 3], 18 +Inf" in events[1].message


def test_second_occurrence_of_a_bad_derivative_names_its_node_and_line(spool: Path) -> None:
    events = events_of(spool, plainly(unclear_derivative))
    assert [event.kind for event in events] == ["nonfinite_gradient"] * 2
    assert_named(events, unclear_derivative, "SqrtBackward0")
    assert "kept of the forward 0: float32 [], 0 to 0, 1 zeros" in events[1].message
    assert "gradient received 0: float32 [], 1 to 1\n" in events[1].message
    assert "gradient sent back 0: float32 [], 1 +Inf\n" in events[1].message


def large_and_dropped(out: Tensor, is_faulty: bool) -> Tensor:
    out = out * (1e20 if is_faulty else 1.0)
    return (out.square().cosh() + (out.detach() * 0.0).cosh()).mean()  # FAULT


def test_loss_of_a_large_output_that_the_script_drops_is_told_at_the_second_occurrence(spool: Path) -> None:
    loop = Loop(width=1024)
    events = events_of(spool, plainly(large_and_dropped, rows=256), loop)
    assert_named(events, large_and_dropped, "pow")


# -- ways through a step in which the watch must not stay


def raising(loop: Loop, step: int) -> Tensor:
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        loop.loss(step, lambda out, _: out @ out)
    return loop.loss(step)


def without_backward(loop: Loop, step: int) -> Tensor:
    loop.loss(step)
    return loop.loss(step)


def two_forwards(loop: Loop, step: int) -> Tensor:
    return loop.loss(step) + 0.1 * loop.loss(step, lambda out, _: out.square().mean())


def accumulated(loop: Loop, step: int) -> Tensor:
    (loop.loss(step, lambda out, _: out.square().mean()) / 2).backward()
    assert depth() == 0
    return loop.loss(step) / 2


def evaluated_between(loop: Loop, step: int) -> Tensor:
    loss = loop.loss(step)
    loop.model.eval()
    with torch.no_grad():
        float(loop.model(batch(99)).mean())
    loop.model.train()
    return loss


def under_autocast(loop: Loop, step: int) -> Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        return loop.loss(step, lambda out, is_faulty: unclear(out.float(), is_faulty))


def with_transforms(loop: Loop, step: int) -> Tensor:
    def make(out: Tensor, is_faulty: bool) -> Tensor:
        slope = torch.vmap(torch.func.grad(lambda x: x.square().sum()))(out)
        return unclear(out, is_faulty) + 0.1 * slope.mean()

    return loop.loss(step, make)


def from_a_generator(loop: Loop, step: int) -> Tensor:
    def losses() -> Iterator[Tensor]:
        while True:
            yield loop.loss(step)

    return next(losses())


def beside_a_critic(loop: Loop, step: int) -> Tensor:
    critic = nn.Linear(3, 1)
    out = loop.model(batch(step))
    critic(out.detach()).mean().backward()
    assert depth() == loop.is_armed
    return unclear(out, step in FAULTY)


def scaled(loop: Loop, step: int) -> Tensor:
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    return scaler.scale(0.5 * loop.loss(step))


WAYS = [
    scaled,
    raising,
    without_backward,
    two_forwards,
    accumulated,
    evaluated_between,
    under_autocast,
    with_transforms,
    from_a_generator,
    beside_a_critic,
]


@pytest.mark.parametrize("way", WAYS)
def test_fault_is_named_the_watch_gone_and_the_training_the_same_whatever_a_step_does(
    way: Callable[[Loop, int], Tensor], spool: Path
) -> None:
    def train(loop: Loop) -> None:
        torch.manual_seed(3)
        for step in range(7):
            noise = torch.rand(())
            loop.update(way(loop, step) + noise * torch.dropout(loop.model[0].weight, 0.5, True).mean())

    plain, seen = Loop(), Loop()
    train(plain)
    state = torch.get_rng_state()
    assert_named(events_of(spool, train, seen), unclear, "erfinv")
    assert torch.equal(torch.get_rng_state(), state)
    for one, other in zip(plain.model.parameters(), seen.model.parameters(), strict=True):
        assert torch.equal(one, other)


def test_update_is_not_watched_after_a_forward_that_no_backward_follows(spool: Path) -> None:
    def train(loop: Loop) -> None:
        for step in range(FAULTY[0] + 3):
            loop.loss(step).backward()
            loop.model(batch(step))
            assert depth() == loop.is_armed
            loop.optimizer.step()
            assert depth() == 0
            loop.optimizer.zero_grad()
        assert loop.is_armed

    assert len(events_of(spool, train)) == 1


def test_session_that_is_closed_amid_a_loss_leaves_nothing(spool: Path) -> None:
    loop = Loop()
    with probe.watch(loop.model, loop.optimizer, spool=spool, connect="") as run:
        loop.run = run
        for step in range(FAULTY[0] + 1):
            loop.update(loop.loss(step))
        out = loop.model(batch(0))
        assert depth() == 1
        run.close()
        assert depth() == 0
        unclear(out, False).backward()
        assert depth() == 0


def test_model_that_is_dropped_amid_a_loss_leaves_nothing(spool: Path) -> None:
    def begin() -> tuple[Probe, Tensor]:
        loop = Loop()
        loop.run = probe.watch(loop.model, loop.optimizer, spool=spool, connect="")
        for step in range(FAULTY[0] + 1):
            loop.update(loop.loss(step))
        return loop.run, loop.model(batch(0))

    run, _ = begin()
    gc.collect()
    assert depth() == 0
    run.close()


def test_arming_ends_after_some_steps_and_happens_a_few_times_in_a_run(spool: Path) -> None:
    armed: list[bool] = []
    apart = STEPS + 2

    def train(loop: Loop) -> None:
        for step in range((ARMS + 1) * apart):
            out = loop.model(batch(step))
            armed.append(loop.is_armed)
            loop.update(unclear(out, step % apart == 0))

    events = events_of(spool, train)
    assert [event.origin for event in events] == [None] * (ARMS + 1)
    assert armed == ([False] + [True] * STEPS + [False]) * ARMS + [False] * apart
    assert ["armed: " in event.message for event in events] == [True] * ARMS + [False]


def test_healthy_run_is_never_watched(spool: Path) -> None:
    def train(loop: Loop) -> None:
        for _ in range(6):
            loop.update(loop.loss(0))
        assert loop.run is not None and loop.run._incidents.armed.steps == 0

    assert events_of(spool, train) == []


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_compiled_loss_is_not_watched(spool: Path) -> None:
    function: Any = torch.compile(lambda out, size: (out * size).mean(), backend="aot_eager")

    def train(loop: Loop) -> None:
        for step in range(4):
            size = torch.full((), torch.inf if step in FAULTY else 1.0)
            loop.update(loop.loss(step, lambda out, _: function(unclear(out, False), size)))  # noqa: B023
            assert not loop.is_armed

    (event,) = events_of(spool, train)
    assert event.origin is None
    assert "; not armed for the next occurrence: the loss, or a part of it, runs compiled." in event.message
