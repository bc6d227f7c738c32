"""The step tracker between stand-ins: whom it calls at each point of a step, and in which order."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from torch import nn

from probe.actions.step_hooks import Hook, StepHooks
from probe.errors import AnomalyError, PolicyError
from probe.guard import Guard
from probe.loop.failed_forward import FailedForward
from probe.loop.step_tracker import StepTracker
from probe.loop.tracker_parts import TrackerParts
from probe.settings.levels import Features
from probe.threads.watchdog import LoopMark


class Teller:
    """Stands in for a part: tells of what it is called with, and answers as it was told to."""

    def __init__(self, told: list[str], name: str, **answers: Any) -> None:
        self._told, self._name = told, name
        self.__dict__.update(answers)

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *_, **__: self._told.append(f"{self._name}.{name}")


class Bench:
    """A tracker, its hooks, and what was called."""

    def __init__(self) -> None:
        self.told: list[str] = []
        self.hooks, self.failed, self.guard = StepHooks(), FailedForward(), Guard()
        self.anomaly: AnomalyError | None = None
        self.capture = Teller(self.told, "capture")
        opened: Any = SimpleNamespace(
            captures={}, samples=4, backwards=0, logged={}, forget=lambda _: self.told.append("open.forget")
        )
        self.loop = Teller(
            self.told, "loop", open=opened, backward=object(), finished_early=False, is_untrained=False,
            is_foreign_backward=lambda: False, take_newest=lambda: None,
            begin_forward=self.begin_forward, begin_backward=self.begin_backward,
            counter=SimpleNamespace(upcoming=None, leave=lambda: None),
        )  # fmt: skip
        self.schedule = Teller(
            self.told, "schedule", is_off=False, features=Features(gradients=1, update_ratios=1)
        )
        self.fast = Teller(self.told, "fast", leave=lambda: None, next_step=None)
        pipeline = Teller(self.told, "pipeline", last_step=6, take_anomaly=self.take_anomaly)
        parts: dict[str, Any] = {name: Teller(self.told, name) for name in TrackerParts.__slots__}
        parts |= {
            "hooks": self.hooks, "failed": self.failed, "loop": self.loop, "schedule": self.schedule,
            "fast": self.fast, "pipeline": pipeline, "mark": LoopMark(),
            "attention": Teller(self.told, "attention", is_elsewhere=False),
            "attachment": Teller(self.told, "attachment", is_paused=False, owners=1),
        }  # fmt: skip
        self.tracker = StepTracker(TrackerParts(**parts), self.guard)
        self.told.clear()

    def begin_forward(self, *_: Any) -> Any:
        self.told.append("loop.begin_forward")
        return self.capture

    def begin_backward(self, *_: Any) -> None:
        self.told.append("loop.begin_backward")
        self.loop.backward = object()

    def take_anomaly(self) -> AnomalyError | None:
        anomaly, self.anomaly = self.anomaly, None
        return anomaly

    def hang_in(self, *names: str) -> None:
        """Have each of these hooks tell that it was called."""
        for name in names:
            hook: Hook[..., Any] = getattr(self.hooks, name)
            hook.add(lambda *_, name=name: self.told.append(f"<{name}>"))

    def call(self, root: nn.Module, forward: Callable[..., Any]) -> Any:
        return self.tracker.call_root(forward, root, (1,), {})


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_forward_is_captured_then_measured_then_followed(bench: Bench) -> None:
    bench.hang_in("training_call", "before_forward", "after_forward", "forward_raised")
    assert bench.call(nn.Identity(), lambda root, one: bench.told.append("forward") or one) == 1
    assert bench.told == [
        *("attention.note_call", "<training_call>", "loop.begin_forward", "measures.begin_forward"),
        *("<before_forward>", "phases.begin_forward", "forward"),
        *("measures.end_forward", "phases.end_forward", "<after_forward>"),
        *("capture.finish", "fast.note_output"),
    ]


def test_forward_that_raises_is_ended_from_the_inside_out(bench: Bench) -> None:
    bench.hang_in("before_forward", "after_forward", "forward_raised")
    error = RuntimeError("of the user")
    with pytest.raises(RuntimeError) as caught:
        bench.call(nn.Identity(), lambda *_: throw(error))
    assert caught.value is error
    assert bench.told[-3:] == ["<forward_raised>", "measures.end_forward", "open.forget"]
    assert bench.failed.take(error) is cast(Any, bench.capture)


def throw(error: BaseException) -> None:
    raise error


def test_forward_in_eval_mode_is_an_evaluation(bench: Bench) -> None:
    bench.hang_in("training_call", "evaluation_call")
    bench.call(nn.Identity().eval(), lambda *_: None)
    assert "<evaluation_call>" in bench.told and "<training_call>" not in bench.told


def test_policies_change_what_goes_in_and_comes_out_and_one_that_raises_is_no_forward(bench: Bench) -> None:
    bench.hooks.inputs.add(lambda root, args, kwargs, step: ((args[0] + step,), kwargs))
    bench.hooks.outputs.add(lambda output, step: output * 10)
    assert bench.call(nn.Identity(), lambda root, one: one) == 80
    bench.hooks.outputs.add(lambda output, step: throw(PolicyError("broken")))
    with pytest.raises(PolicyError):
        bench.call(nn.Identity(), lambda root, one: one)
    assert bench.told[-1] == "open.forget"


def test_backward_calls_the_hooks_round_the_loop(bench: Bench) -> None:
    bench.hang_in("before_any_backward", "before_backward", "backward_begun")
    bench.hang_in("after_any_backward", "after_backward")
    loss = torch.ones(())
    bench.tracker.before_backward(loss, None)
    bench.tracker.after_backward(loss)
    assert bench.told == [
        *("<before_any_backward>", "fast.note_loss", "<before_backward>", "loop.begin_backward"),
        *("<backward_begun>", "phases.begin_backward", "phases.end_backward"),
        *("<after_any_backward>", "<after_backward>", "loop.end_backward"),
    ]


def test_backward_of_another_model_is_told_to_who_asked_for_any(bench: Bench) -> None:
    bench.hang_in("before_any_backward", "before_backward", "after_any_backward", "after_backward")
    bench.loop.is_foreign_backward, bench.loop.backward = lambda: True, None
    bench.tracker.before_backward(torch.ones(()), None)
    bench.tracker.after_backward(torch.ones(()))
    assert bench.told == ["<before_any_backward>", "phases.end_backward", "<after_any_backward>"]


def test_update_is_acted_upon_before_it_is_looked_at(bench: Bench) -> None:
    bench.hang_in("before_closure", "before_update", "after_update", "after_step")
    optimizer: Any = object()
    bench.tracker.before_closure(optimizer)
    bench.tracker.before_step(optimizer)
    bench.tracker.after_step(optimizer)
    assert bench.told == [
        *("<before_closure>", "loop.finish_at_optimizer", "<before_update>", "measures.before_update"),
        *("phases.begin_update", "phases.end_update"),
        *("<after_update>", "<after_step>", "pipeline.look_after_update", "fast.consider"),
    ]


def test_anomaly_is_raised_outside_of_the_guard_before_anybody_acts(bench: Bench) -> None:
    bench.hang_in("before_update")
    bench.anomaly = AnomalyError("the loss is NaN")
    with pytest.raises(AnomalyError):
        bench.tracker.before_step(cast(Any, object()))
    assert bench.told == ["loop.finish_at_optimizer"] and bench.guard.failures == 0


def test_part_that_fails_is_off_and_the_step_goes_on(bench: Bench) -> None:
    bench.loop.finish_at_optimizer = lambda _: throw(ValueError("of ours"))
    bench.hang_in("before_update")
    bench.tracker.before_step(cast(Any, object()))
    assert bench.guard.failures == 1 and "<before_update>" in bench.told


def test_close_ends_the_evaluation_before_its_parts_and_the_parts_before_the_policies(bench: Bench) -> None:
    bench.hang_in("training_call", "stop", "close")
    bench.tracker.close()
    assert bench.told == [
        *("fast.stop", "attachment.detach", "epochs.stop", "<training_call>", "<stop>", "loop.finish_last"),
        *("pipeline.close", "<close>", "measures.stop", "loop.forget"),
    ]


def test_detach_forgets_and_writes_nothing(bench: Bench) -> None:
    bench.hang_in("training_call", "stop", "close")
    bench.tracker.detach()
    assert bench.told == [
        *("fast.abandon", "attachment.detach", "epochs.stop", "<stop>", "pipeline.forget"),
        *("measures.stop", "loop.forget"),
    ]
