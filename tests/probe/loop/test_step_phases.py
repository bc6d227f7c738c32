"""What the phases of a step take, recorded of a loop that sleeps in known places and times its own calls."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from early_arming import early_arming
from run_numbers import run_of
from timed_loop import PHASES, SleepySamples, TimedLoop, assert_phases, assert_within_step
from torch import Tensor, nn
from torch.utils.data import DataLoader

import probe
from probe.loop.news_watch import Lookout
from probe.measure.kernels import hot_binding
from probe.session import Probe
from probe.wire import Frame

Act = Callable[[TimedLoop, Probe], object]
BOTH_WAYS = pytest.mark.parametrize(
    "in_c",
    [
        False,
        pytest.param(
            True,
            marks=pytest.mark.skipif(hot_binding.status().calls is None, reason=hot_binding.status().reason),
        ),
    ],
    ids=["slow way", "in C"],
)


def recorded(
    spool: Path, loop: TimedLoop, act: Act, *, in_c: bool = False, has_optimizer: bool = True, **options: Any
) -> list[Frame]:
    """The frames of a training in which `act` makes all steps."""
    optimizer = loop.optimizer if has_optimizer else None
    with early_arming(in_c=in_c) as followed:
        with probe.watch(loop.model, optimizer, run="run", connect="", **options) as run:
            act(loop, run)
            assert run._guard.failures == 0
        assert bool(followed.steps) is in_c
    return [frame for frame in run_of(spool).frames if frame.columns]


@BOTH_WAYS
def test_each_phase_is_what_the_script_measures_of_it(spool: Path, in_c: bool) -> None:
    loop = TimedLoop()
    frames = recorded(spool, loop, lambda *_: loop.steps(12), in_c=in_c)
    assert_phases(frames, loop.reference)


@BOTH_WAYS
def test_phases_are_the_same_where_values_are_read_after_the_update(spool: Path, in_c: bool) -> None:
    """So it is on CUDA."""
    loop = TimedLoop()
    frames = recorded(spool, loop, lambda *_: loop.steps(12, 2), in_c=in_c, verdict="after_update")
    assert_phases(frames, loop.reference)


@BOTH_WAYS
def test_what_the_probe_does_for_c_is_counted_once(
    spool: Path, monkeypatch: pytest.MonkeyPatch, in_c: bool
) -> None:
    """C times its callbacks, and the guard what of them is Python: 3 ms at the end of each backward."""

    def look_about(lookout: Lookout, step: int) -> int:
        lookout._judge._guard.run("a test", busy, 0.003)
        return 1  # as soon as can be

    monkeypatch.setattr(Lookout, "has_news", True)
    monkeypatch.setattr(Lookout, "look_about", look_about)
    loop = TimedLoop()
    frames = recorded(spool, loop, lambda *_: loop.steps(12), in_c=in_c, verdict="after_update")
    assert_phases(frames, loop.reference)


def busy(seconds: float) -> None:
    end_s = time.thread_time() + seconds
    while time.thread_time() < end_s:
        pass


@BOTH_WAYS
def test_phases_of_micro_steps_are_added_up(spool: Path, in_c: bool) -> None:
    loop = TimedLoop()
    frames = recorded(spool, loop, lambda *_: loop.steps(8, 3), in_c=in_c)
    assert_phases(frames, loop.reference)


@BOTH_WAYS
@pytest.mark.parametrize("with_gradients", [False, True], ids=["no_grad", "with gradients"])
def test_evaluation_between_steps_is_in_no_phase(spool: Path, in_c: bool, with_gradients: bool) -> None:
    loop = TimedLoop()

    def act(*_: object) -> None:
        for _epoch in range(3):
            loop.steps(4)
            loop.model.eval()
            with torch.set_grad_enabled(with_gradients):
                for inputs, _targets in DataLoader(SleepySamples(loop.reference, 4), batch_size=2):
                    loop.model(inputs)
            loop.model.train()
            loop.reference.forget("data_wait_s", "forward_s")

    frames = recorded(spool, loop, act, in_c=in_c)
    assert_phases(frames, loop.reference)


def test_model_that_is_trained_in_evaluation_mode_has_all_phases(spool: Path) -> None:
    loop = TimedLoop()
    loop.model.eval()
    assert_phases(recorded(spool, loop, lambda *_: loop.steps(4)), loop.reference)


def test_forward_without_gradients_before_that_of_the_step_leaves_it_its_wait(spool: Path) -> None:
    """Self-conditioning and distillation call the model that they train."""
    loop = TimedLoop()

    def act(*_: object) -> None:
        for _step in range(4):
            inputs, targets = loop.batch()
            with torch.no_grad():
                loop.model(inputs)
            loop.reference.forget("forward_s")
            (loop.forward(inputs) - targets).square().mean().backward()
            loop.update()

    for frame in recorded(spool, loop, act)[1:]:
        inside, around = loop.reference.inside[frame.step], loop.reference.around[frame.step]
        assert inside["data_wait_s"] <= 1e9 * frame.scalars["data_wait_s"] + 1 <= around["data_wait_s"] + 2


@BOTH_WAYS
@pytest.mark.parametrize("phase", ["forward_s", "backward_s", "optimizer_s"])
def test_step_that_is_taken_back_from_c_in_the_middle_of_a_phase_keeps_it(
    spool: Path, in_c: bool, phase: str
) -> None:
    loop = TimedLoop()

    def act(_: TimedLoop, run: Probe) -> None:
        tracker = run._tracker
        assert tracker is not None
        for _round in range(3):
            loop.steps(4)
            loop.reference.meanwhile = phase, tracker.fast.leave
            loop.steps(1)
            assert loop.reference.meanwhile is None
        loop.steps(2)

    assert_phases(recorded(spool, loop, act, in_c=in_c), loop.reference)


@BOTH_WAYS
@pytest.mark.parametrize("phase", ["forward_s", "backward_s", "optimizer_s"])
def test_phase_that_raises_leaves_the_others_right(spool: Path, in_c: bool, phase: str) -> None:
    loop = TimedLoop()

    def fail() -> None:
        raise ArithmeticError

    def act(*_: object) -> None:
        loop.steps(5)
        loop.reference.meanwhile = phase, fail
        with suppress(ArithmeticError):
            loop.steps(1)
        loop.optimizer.zero_grad()
        loop.steps(5)

    frames = recorded(spool, loop, act, in_c=in_c)
    for frame in frames[1:]:
        assert_within_step(frame)
    assert_phases(frames[-3:], loop.reference, first=0)


@BOTH_WAYS
def test_backward_of_another_model_after_one_that_raised_is_not_taken_for_it(spool: Path, in_c: bool) -> None:
    loop, other = TimedLoop(), TimedLoop()

    def fail() -> None:
        raise ArithmeticError

    def act(*_: object) -> None:
        loop.steps(5)
        loop.reference.meanwhile = "backward_s", fail
        with suppress(ArithmeticError):
            loop.steps(1)
        for _step in range(3):
            other.model(torch.ones(2, 4)).square().mean().backward()
        loop.optimizer.zero_grad()
        loop.steps(2)

    assert_phases(recorded(spool, loop, act, in_c=in_c)[-2:], loop.reference, first=0)


def test_closure_is_counted_once(spool: Path) -> None:
    """`LBFGS` calls it again and again in its step; what follows the first call is the optimizer's."""
    loop = TimedLoop()
    optimizer = torch.optim.LBFGS(loop.model.parameters(), lr=0.1, max_iter=4)

    def closure() -> Tensor:
        optimizer.zero_grad()
        return loop.micro_step()

    def act(*_: object) -> None:
        for _step in range(4):
            optimizer.step(closure)

    loop.optimizer = optimizer  # type: ignore[assignment]
    frames = recorded(spool, loop, act)
    assert len(frames) == 4
    for frame in frames[1:]:
        assert_within_step(frame)
        assert set(PHASES) <= set(frame.scalars)


def test_closure_of_a_plain_optimizer_is_no_part_of_its_step(spool: Path) -> None:
    """Lightning calls every optimizer so."""
    loop = TimedLoop()

    def closure() -> Tensor:
        loss = loop.micro_step()
        loop.reference.end_step()
        return loss

    def act(*_: object) -> None:
        for _step in range(5):
            loop.optimizer.step(closure)
            loop.optimizer.zero_grad()

    frames = recorded(spool, loop, act)
    assert len(frames) == 5
    for frame in frames[1:]:
        inside, around = loop.reference.inside[frame.step], loop.reference.around[frame.step]
        for phase in PHASES[:3]:
            assert inside[phase] <= 1e9 * frame.scalars[phase] + 1 <= around[phase] + 2, phase
        assert inside["optimizer_s"] <= 1e9 * frame.scalars["optimizer_s"] + 1
        assert_within_step(frame)


def test_update_by_hand_has_no_time_of_an_optimizer(spool: Path) -> None:
    loop = TimedLoop()

    def act(*_: object) -> None:
        for _step in range(6):
            loop.micro_step()
            loop.reference.end_step()
            with torch.no_grad():
                for parameter in loop.model.parameters():
                    assert parameter.grad is not None
                    parameter -= 1e-3 * parameter.grad
                    parameter.grad = None

    frames = recorded(spool, loop, act, has_optimizer=False)
    assert len(frames) >= 4
    for frame in frames[1:]:
        assert "optimizer_s" not in frame.scalars
        assert frame.scalars["forward_s"] > 0 and frame.scalars["backward_s"] > 0
        assert_within_step(frame)


@BOTH_WAYS
def test_data_from_elsewhere_has_no_wait(spool: Path, in_c: bool) -> None:
    loop = TimedLoop()
    inputs, targets = torch.ones(2, 4), torch.ones(2, 2)

    def steps() -> None:
        for _step in range(8):
            loss = (loop.forward(inputs) - targets).square().mean()
            with loop.reference.call("backward_s"):
                loss.backward()
            loop.update()

    assert_phases(recorded(spool, loop, lambda *_: steps(), in_c=in_c), loop.reference)


def test_other_model_that_is_trained_in_turn_counts_to_no_phase(spool: Path) -> None:
    loop, other = TimedLoop(), TimedLoop()

    def act(*_: object) -> None:
        for _step in range(5):
            loop.step()
            inputs = torch.ones(2, 4)
            nn.functional.mse_loss(other.model(inputs), torch.zeros(2, 2)).backward()
            other.optimizer.step()

    assert_phases(recorded(spool, loop, act), loop.reference)


def test_loader_on_another_thread_is_not_waited_for(spool: Path) -> None:
    from concurrent.futures import ThreadPoolExecutor

    loop = TimedLoop()

    def steps() -> None:
        with ThreadPoolExecutor(1) as pool:
            for _step in range(5):
                inputs, targets = pool.submit(next, loop.batches).result()
                loss = (loop.forward(inputs) - targets).square().mean()
                with loop.reference.call("backward_s"):
                    loss.backward()
                loop.update()

    assert_phases(recorded(spool, loop, lambda *_: steps()), loop.reference)


def test_loader_that_reads_from_another_one_is_waited_for_once(spool: Path) -> None:
    loop = TimedLoop()

    class Nested(torch.utils.data.IterableDataset[tuple[Tensor, Tensor]]):
        def __iter__(self):  # type: ignore[no-untyped-def]
            return loop.pass_over_data()

    loop.batches = iter(DataLoader(Nested(), batch_size=None))
    assert_phases(recorded(spool, loop, lambda *_: loop.steps(4)), loop.reference)


def test_first_step_after_level_off_counts_nothing_of_before(spool: Path) -> None:
    loop = TimedLoop()

    def act(_: TimedLoop, run: Probe) -> None:
        loop.steps(4)
        run.set_level("off")
        loop.steps(4)
        run.set_level("basic")
        loop.steps(4)

    frames = recorded(spool, loop, act)
    assert frames[-1].step == 11
    for frame in frames:
        if "step_time_s" in frame.scalars:
            assert_within_step(frame)
    assert_phases([frame for frame in frames if frame.step >= 10], loop.reference, first=0)
