"""Accelerate's own loop with the real library: prepared model, accumulation, clipping, autocast, the end."""

import gc
import re
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState, GradientState
from accelerate.tracking import GeneralTracker
from gradient_sums import GradientSums
from run_numbers import norms_of, run_of, scalars_of, steps_of
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import optimizer as torch_optimizer
from trainer_models import make_loader, make_net

from probe.integrations import accelerate as integration
from probe.integrations.accelerate import AcceleratedRun, watch

pytestmark = pytest.mark.usefixtures("one_thread", "nothing_switched_off")


class Loop:
    """A loop as Accelerate's documentation has it, which notes its own losses and gradients."""

    def __init__(self, model: nn.Module | None = None, **options: Any) -> None:
        model = model or make_net()
        self.accelerator = Accelerator(cpu=True, **options)
        self.sums = GradientSums(model)
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        halving = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
        self.model, self.optimizer, self.loader, self.schedule = self.accelerator.prepare(
            model, optimizer, make_loader(), halving
        )
        self.losses: list[float] = []
        self.before_step: Callable[[], None] = lambda: None
        self.after_step: Callable[[], None] = lambda: None

    def watch(self, **options: Any) -> AcceleratedRun:
        # Nothing is left out for being dear: this model is too small for the limit.
        return watch(self.accelerator, self.model, self.optimizer, overhead_limit=0, **options)

    def train(self, epochs: int = 1) -> None:
        for _ in range(epochs):
            for inputs, targets in self.loader:
                with self.accelerator.accumulate(self.model):
                    loss = self.loss(inputs, targets)
                    self.losses.append(loss.item())
                    self.accelerator.backward(loss)
                    if self.accelerator.sync_gradients:
                        self.before_step()
                    self.optimizer.step()
                    self.schedule.step()
                    self.optimizer.zero_grad()
                    self.after_step()

    def loss(self, inputs: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(self.model(inputs), targets)


@pytest.fixture(autouse=True)
def own_state() -> Iterator[None]:
    """None of the state that all accelerators of a process share."""
    yield
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()
    gc.collect()


@pytest.fixture(autouse=True)
def no_optimizer_hooks_left(own_state: None) -> Iterator[None]:
    before = optimizer_hooks()
    yield
    assert optimizer_hooks() == before


def optimizer_hooks() -> list[int]:
    return list(torch_optimizer._global_optimizer_post_hooks)


def test_accelerate_prepared_model_is_recorded_under_its_own_names(spool: Path) -> None:
    loop = Loop()
    with loop.watch():
        loop.train()
    run = run_of(spool)
    assert [parameter.name for parameter in run.layouts[0].parameters][:2] == ["0.weight", "0.bias"]
    assert steps_of(run) == list(range(8))
    assert scalars_of(run, "samples") == [4] * 8
    np.testing.assert_allclose(scalars_of(run, "loss"), loop.losses, rtol=1e-6)
    np.testing.assert_allclose(norms_of(run), loop.sums.norms(), rtol=1e-5)


def test_accelerate_training_is_bit_identical_when_watched() -> None:
    plain, watched = Loop(gradient_accumulation_steps=2), Loop(gradient_accumulation_steps=2)
    plain.train()
    with watched.watch():
        watched.train()
    for name, value in plain.model.state_dict().items():
        assert torch.equal(value, watched.model.state_dict()[name]), name


def test_accelerate_accumulation_is_one_step_with_the_divisor_undone(spool: Path) -> None:
    loop = Loop(gradient_accumulation_steps=4)
    with loop.watch():
        loop.train()
    run = run_of(spool)
    means = np.reshape(loop.losses, (2, 4)).mean(axis=1)
    assert steps_of(run) == [0, 1]
    assert scalars_of(run, "samples") == [16, 16]
    np.testing.assert_allclose(scalars_of(run, "loss"), means, rtol=1e-6)
    np.testing.assert_allclose(scalars_of(run, "loss_raw"), means, rtol=1e-6)
    np.testing.assert_allclose(norms_of(run), loop.sums.norms(per_step=4), rtol=1e-5)


@pytest.mark.parametrize("kind", ["norm", "value"])
def test_accelerate_clipped_gradients_are_measured_before_clipping(spool: Path, kind: str) -> None:
    loop = Loop()
    clip = getattr(loop.accelerator, f"clip_grad_{kind}_")
    loop.before_step = lambda: clip(loop.model.parameters(), 0.001)
    with loop.watch():
        loop.train()
    run = run_of(spool)
    assert norms_of(run).min() > 0.001
    np.testing.assert_allclose(norms_of(run), loop.sums.norms(), rtol=1e-5)


def test_accelerate_autocast_inside_the_forward_is_recorded(spool: Path) -> None:
    loop = Loop(mixed_precision="bf16")
    assert "forward" in loop.model.__dict__  # the wrapper that prepare puts there
    with loop.watch():
        loop.train()
    run = run_of(spool)
    np.testing.assert_allclose(scalars_of(run, "loss"), loop.losses, rtol=1e-6)
    np.testing.assert_allclose(norms_of(run), loop.sums.norms(), rtol=1e-5)


@pytest.mark.parametrize("precision", ["no", "bf16"])
def test_accelerate_origin_of_a_nan_is_named(spool: Path, precision: str) -> None:
    loop = Loop(make_net(poisoned=True), mixed_precision=precision)
    with loop.watch():
        loop.train()
    (event,) = [event for event in run_of(spool).latest_events if event.kind == "nonfinite_loss"]
    assert event.origin is not None
    assert (event.step, event.origin.op, event.origin.module) == (3, "sqrt", "2")


def test_accelerate_progress_is_logged_with_the_step_it_belongs_to(spool: Path) -> None:
    loop = Loop(gradient_accumulation_steps=4)
    with loop.watch(max_steps=4):
        loop.train(epochs=2)
    run = run_of(spool)
    assert scalars_of(run, "log/epoch") == [0, 0, 1, 1]
    assert scalars_of(run, "log/global_step") == [1, 2, 3, 4]
    assert scalars_of(run, "log/max_steps") == [4] * 4
    assert scalars_of(run, "lr") == [1.0, 0.5, 0.25, 0.125]


def test_accelerate_log_goes_to_the_run_and_leaves_the_loss_alone(spool: Path) -> None:
    loop = Loop()
    loop.after_step = lambda: loop.accelerator.log(
        {"loss": -1.0, "accuracy": len(loop.losses), "note": "text"}, step=len(loop.losses)
    )
    with loop.watch():
        loop.train()
    run = run_of(spool)
    assert scalars_of(run, "log/accuracy") == list(range(1, 9))
    np.testing.assert_allclose(scalars_of(run, "loss"), loop.losses, rtol=1e-6)


def test_accelerate_end_training_finishes_the_run(spool: Path) -> None:
    loop, hooks = Loop(), optimizer_hooks()
    run = loop.watch()
    loop.train()
    assert run.active
    loop.accelerator.end_training()
    assert not run.active
    assert optimizer_hooks() == hooks
    end = run_of(spool).end
    assert end is not None
    assert (end.outcome, end.step) == ("finished", 7)
    assert loop.accelerator.trackers == []


def test_accelerate_end_training_reaches_the_trackers_after_ours(spool: Path) -> None:
    class Other(GeneralTracker):
        name, requires_logging_directory, tracker = "other", False, None
        is_finished = False

        def finish(self) -> None:
            self.is_finished = True

    loop, other = Loop(), Other()
    loop.watch()
    loop.accelerator.trackers.append(other)
    loop.accelerator.end_training()
    assert other.is_finished
    assert loop.accelerator.trackers == [other]


def test_accelerate_exception_in_the_block_is_recorded(spool: Path) -> None:
    loop = Loop()

    def fail() -> None:
        if len(loop.losses) == 3:
            raise RuntimeError("no more data")

    loop.after_step = fail
    with pytest.raises(RuntimeError), loop.watch():
        loop.train()
    run = run_of(spool)
    assert [event.step for event in run.latest_events if event.kind == "exception"] == [3]
    assert run.end is not None
    assert run.end.outcome == "exception"


def test_accelerate_session_ends_with_its_accelerator(spool: Path) -> None:
    loop = Loop()
    run = loop.watch().run
    loop.train()
    del loop
    gc.collect()
    assert not run.active
    run.close()


def test_accelerate_steps_of_a_second_optimizer_are_not_counted(spool: Path) -> None:
    loop = Loop()
    second = loop.accelerator.prepare(torch.optim.SGD([loop.model[2].bias], lr=0.125))
    loop.after_step = second.step
    with watch(loop.accelerator, loop.model, loop.optimizer, second):
        loop.train()
    counts = [count for count in scalars_of(run_of(spool), "log/global_step") if count is not None]
    assert counts == list(range(1, 9))


def test_accelerate_watch_that_is_switched_off_does_nothing(
    spool: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NANSCOPE_OFF", "1")
    loop = Loop()
    with loop.watch() as run:
        assert (run.active, loop.accelerator.trackers) == (False, [])
        loop.train()
    assert not spool.exists()


def test_accelerate_option_out_of_range_raises_at_once() -> None:
    loop = Loop()
    with pytest.raises(ValueError, match="max_replays"):
        loop.watch(max_replays=-1)
    assert loop.accelerator.trackers == []


def test_accelerate_documented_lines_attach(spool: Path) -> None:
    (lines,) = re.findall(r"\n\n((?:    .*\n)+)", integration.__doc__ or "")
    loop = Loop()
    names = {"accelerator": loop.accelerator, "model": loop.model, "optimizer": loop.optimizer}
    exec(textwrap.dedent(lines), names)  # noqa: S102 - our own documentation
    loop.train()
    names["run"].close()
    assert len(run_of(spool).frames) == 8
