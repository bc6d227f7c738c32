"""What C follows is what the slow way sees: the same frames, the same events, the same weights."""

from __future__ import annotations

import gc
import math
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from armed_training import ARMED_AT, Planted, Training, begin, watched_training
from both_ways import Act, assert_same, recorded
from early_arming import early_arming
from journal_differences import numbers
from run_numbers import run_of
from thinned import some
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

import probe
from probe.delivery.recorder import recorder
from probe.detectors.base import DetectorThresholds
from probe.incidents.verdict import Verdict
from probe.loop import step_queue
from probe.loop.sample_judge import SampleJudge
from probe.measure.kernels import hot_binding
from probe.measure.statistics.statistics import MeasuringPlan, TensorStatistics
from probe.step.frames import MeasuredStep

pytestmark = [
    pytest.mark.skipif(hot_binding.status().calls is None, reason=hot_binding.status().reason),
    pytest.mark.usefixtures("nothing_switched_off", "one_thread"),
]


def with_fault(fault: Callable[[Tensor], Tensor]) -> Act:
    def act(training: Training) -> None:
        training.steps(5)
        training.model.fault = fault
        training.steps(1)

    return act


def with_loss(change: Callable[[Tensor], Tensor]) -> Act:
    def act(training: Training) -> None:
        training.steps(5)
        training.steps(1, change)

    return act


def test_healthy_steps_are_recorded_as_in_the_slow_way(tmp_path: Path) -> None:
    journal = assert_same(tmp_path, lambda training: training.steps(60))
    assert sorted({frame.step for frame in journal.frames}) == [*range(ARMED_AT + 60)]
    assert journal.latest_events == []


def test_most_steps_are_followed(tmp_path: Path) -> None:
    with watched_training(in_c=True) as training:
        calls = hot_binding.status().calls
        assert calls is not None and training.run._tracker is not None
        followed = 0
        for _ in range(100):
            followed += training.is_followed and calls.state.armed == 1
            training.steps(1)
    assert followed >= 88


def test_results_of_the_slow_way_are_not_kept_while_c_measures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 2,000 tensors each takes 96 KB, and as many were kept as ever waited for the recorder."""
    waiting: list[TensorStatistics] = []
    blocks: list[weakref.ref[Any]] = []
    measure, release = MeasuringPlan.measure, MeasuringPlan.release

    def measure_for_one_who_waits(plan: MeasuringPlan, tensors: Sequence[Tensor | None]) -> TensorStatistics:
        waiting.append(measure(plan, tensors))
        return waiting[-1]

    def release_when_nobody_waits(plan: MeasuringPlan) -> None:
        blocks.extend(weakref.ref(each.block) for each in waiting)
        waiting.clear()
        release(plan)

    monkeypatch.setattr(MeasuringPlan, "measure", measure_for_one_who_waits)
    monkeypatch.setattr(MeasuringPlan, "release", release_when_nobody_waits)
    with watched_training(in_c=True) as training:
        assert len(blocks) >= 20
        deadline = time.monotonic() + 30
        # What may be left: one for the next slow step, and the last finite steps, which detectors name.
        while sum(block() is not None for block in blocks) > 6:
            assert time.monotonic() < deadline, "the results of all slow steps are kept"
            training.steps(1)
            time.sleep(0.02)


def test_update_is_looked_at_without_leaving_c(tmp_path: Path) -> None:
    def to_the_update_of_step_150(training: Training) -> None:
        training.steps(150 - ARMED_AT)
        assert training.is_followed
        training.steps(5)
        assert training.is_followed

    journal, _ = recorded(tmp_path, to_the_update_of_step_150, in_c=True)
    ratios = [frame for frame in journal.frames if "update_ratio" in frame.scalars]
    assert [frame.step for frame in ratios] == [0, 50, 100, 150]


def test_followed_training_has_the_weights_of_one_that_nobody_watches(tmp_path: Path) -> None:
    _, watched = recorded(tmp_path, lambda training: training.steps(60), in_c=True)
    torch.manual_seed(0)
    model, generator = Planted(), torch.Generator().manual_seed(1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9)
    for _ in range(ARMED_AT + 60):
        inputs = torch.randn(16, 20, generator=generator)
        targets = torch.randint(5, (16,), generator=generator)
        optimizer.zero_grad()
        F.cross_entropy(model(inputs), targets).backward()
        optimizer.step()
    assert all(map(torch.equal, watched, model.parameters()))


FAULTS: dict[str, Act] = {
    "division by zero": with_fault(lambda hidden: hidden / torch.zeros(()) * 0),
    "root of zero": with_fault(lambda hidden: hidden + torch.sqrt((hidden * 0).sum())),
    "logarithm": with_fault(lambda hidden: hidden.sub(1).log()),
    "bad loss": with_loss(lambda loss: loss * math.inf),
    "root in the loss": with_loss(lambda loss: loss + torch.sqrt(loss * 0)),
}


@pytest.mark.parametrize("name", FAULTS)
def test_fault_in_a_followed_step_gives_the_same_events(tmp_path: Path, name: str) -> None:
    journal = assert_same(tmp_path, FAULTS[name])
    events = journal.latest_events
    assert [event.step for event in events] == [ARMED_AT + 5] * len(events)
    assert {"nonfinite_loss", "nonfinite_gradient"} & {event.kind for event in events}


def test_fault_of_a_followed_step_is_told_whenever_its_frame_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Judging has a period of its own, 0.25 s, though frames leave the ring once a second, or never."""
    monkeypatch.setattr(recorder, "WRITE_S", 3600.0)
    with watched_training(in_c=True, spool=tmp_path) as training:
        training.steps(20)
        training.model.fault = lambda hidden: hidden * 1e5
        training.steps(1)
        assert training.is_followed
        deadline = time.monotonic() + 30
        while "gradient_explosion" not in [event.kind for event in run_of(tmp_path).latest_events]:
            assert time.monotonic() < deadline, "the fault is told when its frame is written"
            time.sleep(0.05)
        assert ARMED_AT + 20 not in {frame.step for frame in run_of(tmp_path).frames}
    periods = [watch.period_s for watch in training.run._recorder.watches]
    assert min(periods) <= 0.25


def test_bad_input_of_a_followed_step_is_named(tmp_path: Path) -> None:
    def act(training: Training) -> None:
        inputs, targets = training.batch()
        inputs[3, 3] = math.nan
        training.optimizer.zero_grad()
        F.cross_entropy(training.model(inputs), targets).backward()
        training.optimizer.step()

    event = assert_same(tmp_path, act).latest_events[0]
    assert event.origin is not None and event.origin.op == "input"


def bad_gradient_by_a_hook(training: Training) -> None:
    inputs, targets = training.batch()
    training.optimizer.zero_grad()
    output = training.model(inputs)
    output.register_hook(lambda gradient: gradient * math.nan)
    F.cross_entropy(output, targets).backward()
    training.optimizer.step()


def two_forwards(training: Training) -> None:
    (first, targets), (second, _) = training.batch(), training.batch()
    training.optimizer.zero_grad()
    F.cross_entropy(training.model(first) + training.model(second), targets).backward()
    training.optimizer.step()
    training.steps(3)


def two_backwards(training: Training) -> None:
    training.optimizer.zero_grad()
    for _ in range(2):
        inputs, targets = training.batch()
        (F.cross_entropy(training.model(inputs), targets) * 0.4).backward()
    training.optimizer.step()
    training.steps(3)


def update_left_out(training: Training) -> None:
    inputs, targets = training.batch()
    training.optimizer.zero_grad()
    F.cross_entropy(training.model(inputs), targets).backward()
    training.steps(3)


def forward_left_alone(training: Training) -> None:
    training.model(training.batch()[0])
    training.steps(3)


def evaluation_in_the_step(training: Training) -> None:
    inputs, targets = training.batch()
    training.optimizer.zero_grad()
    output = training.model(inputs)
    with torch.no_grad():
        training.model(training.batch()[0])
    F.cross_entropy(output, targets).backward()
    training.optimizer.step()
    training.steps(3)


def evaluation_between_steps(training: Training) -> None:
    training.model.eval()
    with torch.no_grad():
        F.cross_entropy(training.model(training.batch()[0]), training.batch()[1])
    training.model.train()
    training.steps(3)


def another_loss_function(training: Training) -> None:
    inputs, targets = training.batch()
    training.optimizer.zero_grad()
    F.mse_loss(training.model(inputs), F.one_hot(targets, 5).float()).backward()
    training.optimizer.step()
    training.steps(3)


def optimizer_state_loaded(training: Training) -> None:
    training.optimizer.load_state_dict(training.optimizer.state_dict())
    training.optimizer.param_groups[0]["lr"] = 5e-3
    training.steps(5)


class Nested(torch.optim.SGD):
    """Lowers its learning rate, and calls the class that it extends."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:  # type: ignore[override]
        for group in self.param_groups:
            group["lr"] *= 0.99
        return super().step(closure)


def update_that_calls_another_one(training: Training) -> None:
    """`super().step()`: the optimizer's hooks are called twice for one step."""
    training.optimizer = Nested(training.model.parameters(), lr=1e-2)
    training.steps(60)


def optimizer_replaced_and_kept(training: Training) -> None:
    before = training.optimizer
    training.optimizer = torch.optim.SGD(training.model.parameters(), lr=1e-3)
    training.steps(60)
    assert before.param_groups


def learning_rate_changed(training: Training) -> None:
    for rate in (3e-3, 2e-3, 1e-3):
        training.optimizer.param_groups[0]["lr"] = rate
        training.steps(1)


def gradients_clipped(training: Training) -> None:
    for _ in range(30):
        inputs, targets = training.batch()
        training.optimizer.zero_grad()
        F.cross_entropy(training.model(inputs), targets).backward()
        nn.utils.clip_grad_norm_(training.model.parameters(), 0.5)
        training.optimizer.step()


def values_logged(training: Training) -> None:
    for at in range(10):
        training.steps(1)
        training.run.log(mine=float(at))


def model_in_pieces(training: Training) -> None:
    """A part of the model is called by itself: another root."""
    training.model.first(training.batch()[0])
    training.steps(3)


def parameter_frozen(training: Training) -> None:
    training.model.first.bias.requires_grad_(False)
    training.steps(25)


def backward_twice(training: Training) -> None:
    inputs, targets = training.batch()
    training.optimizer.zero_grad()
    loss = F.cross_entropy(training.model(inputs), targets)
    loss.backward(retain_graph=True)
    loss.backward()
    training.optimizer.step()
    training.steps(3)


def forward_that_raises(training: Training) -> None:
    def fail(hidden: Tensor) -> Tensor:
        raise RuntimeError("planted")

    training.model.fault = fail
    with pytest.raises(RuntimeError, match="planted"):
        training.steps(1)
    training.steps(3)


def backward_that_raises(training: Training) -> None:
    inputs, targets = training.batch()
    training.optimizer.zero_grad()
    output = training.model(inputs)

    def fail(gradient: Tensor) -> Tensor:
        raise RuntimeError("planted")

    output.register_hook(fail)
    with pytest.raises(RuntimeError, match="planted"):
        F.cross_entropy(output, targets).backward()
    training.steps(3)


def loss_without_the_output(training: Training) -> None:
    """A loss of the usual kind, from the weights alone: its backward passes the forward by."""
    inputs, _ = training.batch()
    training.optimizer.zero_grad()
    training.model(inputs)
    weights = training.model.second.weight[:, :5]
    F.cross_entropy(weights, torch.arange(5)).backward()
    training.optimizer.step()
    training.steps(3)


def validation_loss_logged_in_a_hook(training: Training) -> None:
    inputs, targets = training.batch()
    training.optimizer.zero_grad()
    output = training.model(inputs)
    output.register_hook(lambda _: training.run.log(val_loss=1.0))
    F.cross_entropy(output, targets).backward()
    training.optimizer.step()
    training.steps(3)


def validation_loss_logged_in_the_forward(training: Training) -> None:
    def tell(hidden: Tensor) -> Tensor:
        training.run.log(val_loss=1.0)
        return hidden

    training.model.fault = tell
    training.steps(3)


def fault_where_inputs_are_looked_at(training: Training) -> None:
    """At every tenth step; these are out of the range that they were in."""
    training.steps(5)
    inputs, targets = training.batch()
    inputs[3] *= 400
    training.model.fault = lambda hidden: hidden / torch.zeros(()) * 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(training, "batch", lambda: (inputs, targets))
        training.steps(1)


UNUSUAL: list[Act] = [
    fault_where_inputs_are_looked_at,
    loss_without_the_output,
    validation_loss_logged_in_a_hook,
    validation_loss_logged_in_the_forward,
    bad_gradient_by_a_hook,
    another_loss_function,
    update_that_calls_another_one,
    model_in_pieces,
    update_left_out,
    # Random loops have these, too.
    two_forwards,
    two_backwards,
    forward_left_alone,
    evaluation_in_the_step,
    evaluation_between_steps,
    optimizer_state_loaded,
    optimizer_replaced_and_kept,
    learning_rate_changed,
    gradients_clipped,
    values_logged,
    parameter_frozen,
    backward_twice,
    forward_that_raises,
    backward_that_raises,
]


class Passing(TorchDispatchMode):
    """Changes the dispatch keys of the thread, and nothing that a replay would have to know."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    ("around", "is_followed"),
    [(lambda: torch.autocast("cpu", dtype=torch.bfloat16), False), (Passing, True)],
    ids=["autocast", "dispatch mode"],
)
def test_step_under_autocast_is_not_followed_as_one_without(
    tmp_path: Path, around: Callable[[], AbstractContextManager[Any]], is_followed: bool
) -> None:
    followed = []

    def act(training: Training) -> None:
        for at in range(60):
            with around() if at == 40 else nullcontext():
                training.steps(1)
            followed.append(training.is_followed)

    assert_same(tmp_path, act)
    # The first of both ways is that of C, or the second.
    in_c = followed[:60] if followed[39] else followed[60:]
    assert in_c[39:41] == [True, is_followed]


def test_later_thread_with_the_identity_of_the_followed_one_is_not_followed() -> None:
    """What is read by the address of a thread's own state went with that thread."""
    made: list[Training] = []
    followed: dict[str, bool] = {}
    is_over, first = threading.Event(), 0

    def train(name: str, steps: int) -> None:
        made[0].steps(steps)
        followed[name] = made[0].is_followed

    def begin_training() -> None:
        made.append(begin(Training, Planted, {}))
        train("first", ARMED_AT)

    def wait_or_train() -> None:
        if threading.get_ident() == first:
            train("second", 1)
        else:
            is_over.wait(60)

    with early_arming(in_c=True, at_once=False):
        thread = threading.Thread(target=begin_training)
        thread.start()
        first = thread.ident or 0
        thread.join(60)
        later = [threading.Thread(target=wait_or_train) for _ in range(30)]
        for thread in later:
            thread.start()
        is_over.set()
        for thread in later:
            thread.join(60)
        made[0].run.close()
    if "second" not in followed:
        pytest.skip("no later thread has the identity of the first one here")
    assert followed == {"first": True, "second": False}


@pytest.mark.parametrize("inference", [False, True])
def test_input_of_inference_mode_is_recorded_as_in_the_slow_way(tmp_path: Path, inference: bool) -> None:
    """Such a tensor does not count how often it is written."""

    def act(training: Training) -> None:
        batch = training.batch

        def odd_batch() -> tuple[Tensor, Tensor]:
            with torch.inference_mode(mode=inference):
                inputs, targets = batch()
            return inputs, targets.clone()

        training.model.first.requires_grad_(False)
        training.batch = odd_batch  # type: ignore[method-assign]
        training.steps(60)
        followed.append(training.is_followed)

    followed: list[bool] = []
    assert_same(tmp_path, act)
    assert any(followed) is not inference


@pytest.mark.parametrize("act", some(UNUSUAL, 9), ids=lambda act: act.__name__)
def test_unusual_step_is_recorded_as_in_the_slow_way(
    tmp_path: Path, act: Act, monkeypatch: pytest.MonkeyPatch
) -> None:
    # When its thread finds a spike, which has the next steps looked at closely, is a matter of time.
    monkeypatch.setattr(step_queue, "JUDGE_S", 1e9)

    def with_steps_around(training: Training) -> None:
        training.steps(5)
        act(training)

    # Two losses in one step are no spike here: where the loop stood when it was found is the clock's.
    assert_same(tmp_path, with_steps_around, thresholds=DetectorThresholds(loss_spike_factor=1e6))


def half_frozen() -> Planted:
    """The first layer is frozen; the optimizer has it."""
    model = Planted()
    model.first.requires_grad_(False)
    return model


def layer_unfrozen(training: Training) -> None:
    training.model.first.bias.requires_grad_(True)


def layer_replaced(training: Training) -> None:
    training.model.second = nn.Linear(30, 5)
    training.optimizer.add_param_group({"params": [*training.model.second.parameters()]})


def parameter_appended(training: Training) -> None:
    """Into the group that is there, without a word to the optimizer."""
    training.model.first.more = nn.Parameter(torch.zeros(1))
    training.optimizer.param_groups[0]["params"].append(training.model.first.more)


@pytest.mark.parametrize(
    "act", [layer_unfrozen, layer_replaced, parameter_appended], ids=lambda act: act.__name__
)
def test_new_trainable_parameter_has_its_row_as_soon_as_in_the_slow_way(tmp_path: Path, act: Act) -> None:
    def with_steps_around(training: Training) -> None:
        training.steps(5)
        torch.manual_seed(3)
        act(training)
        training.steps(12)

    journal = assert_same(tmp_path, with_steps_around, model=half_frozen)
    layouts = {frame.step: frame.layout for frame in journal.frames}
    assert layouts[ARMED_AT + 16] > layouts[ARMED_AT + 4]


def test_clipping_that_reuses_the_norm_is_followed(tmp_path: Path) -> None:
    def act(training: Training) -> None:
        for _ in range(45):
            inputs, targets = training.batch()
            training.optimizer.zero_grad()
            F.cross_entropy(training.model(inputs), targets).backward()
            training.run.clip_gradients(0.5)
            training.optimizer.step()

    journal = assert_same(tmp_path, act)
    assert journal.frames[-1].scalars["grad_norm_clipped"] <= 0.5 + 1e-6


def clip_by_torch(training: Training) -> None:
    nn.utils.clip_grad_norm_(training.model.parameters(), 0.5)


def clip_by_probe(training: Training) -> None:
    training.run.clip_gradients(0.5)


@pytest.mark.parametrize("where", ["between steps", "before the backward"])
@pytest.mark.parametrize(
    "clip",
    [lambda training: None, clip_by_torch, clip_by_probe],
    ids=["no clipping", "torch's", "the probe's"],
)
def test_clipping_of_another_model_is_none_of_a_followed_step(tmp_path: Path, clip: Act, where: str) -> None:
    torch.manual_seed(5)
    other = nn.Linear(3, 2)
    armed: list[bool] = []

    def clip_other() -> None:
        other(torch.ones(1, 3)).sum().backward()
        nn.utils.clip_grad_norm_(other.parameters(), 0.1)

    def act(training: Training) -> None:
        for _ in range(60):
            inputs, targets = training.batch()
            training.optimizer.zero_grad()
            if where == "between steps":
                clip_other()
            loss = F.cross_entropy(training.model(inputs), targets)
            if where == "before the backward":
                nn.utils.clip_grad_norm_(other.parameters(), 0.1)
            loss.backward()
            clip(training)
            training.optimizer.step()
        calls = hot_binding.status().calls
        armed.append(calls is not None and bool(calls.state.armed))

    assert_same(tmp_path, act)
    assert sorted(armed) == [False, True]


def test_model_and_batches_are_not_kept_alive() -> None:
    with watched_training(in_c=True) as training:
        training.steps(3)
        inputs, _ = training.batch()
        model, held = weakref.ref(training.model), weakref.ref(inputs)
        training.step()
        training.run.close()
        del inputs
        training.model = training.optimizer = None  # type: ignore[assignment]
        gc.collect()
        assert (model(), held()) == (None, None)


def test_model_that_goes_while_it_is_followed_ends_the_session(tmp_path: Path) -> None:
    with watched_training(in_c=True) as training:
        run, reference = training.run, weakref.ref(training.model)
        training.model = training.optimizer = None  # type: ignore[assignment]
        gc.collect()
        assert reference() is None and not run.active


def test_second_session_ends_the_following(tmp_path: Path) -> None:
    with watched_training(in_c=True) as training:
        other = Planted()
        with probe.watch(other, torch.optim.SGD(other.parameters(), lr=0.1)):
            training.steps(40)
            assert not training.is_followed


@pytest.mark.parametrize("is_in_a_step", [True, False])
def test_session_that_begins_beside_a_followed_one_misses_nothing(tmp_path: Path, is_in_a_step: bool) -> None:
    other = nn.Linear(20, 5)
    optimizer = torch.optim.SGD(other.parameters(), lr=0.1)
    with watched_training(in_c=True, spool=tmp_path / "one") as training:
        training.steps(3)
        inputs, targets = training.batch()
        output = training.model(inputs) if is_in_a_step else None
        with probe.watch(other, optimizer, spool=tmp_path / "two"):
            for _ in range(3):
                optimizer.zero_grad()
                F.cross_entropy(other(inputs), targets).backward()
                optimizer.step()
        training.optimizer.zero_grad()
        output = training.model(inputs) if output is None else output
        F.cross_entropy(output, targets).backward()
        training.optimizer.step()
    frames = run_of(tmp_path / "two").frames
    assert [frame.step for frame in frames] == [0, 1, 2]
    assert all("loss" in frame.scalars for frame in frames)
    assert [step for step, _ in numbers(run_of(tmp_path / "one").frames)] == [*range(ARMED_AT + 4)]


def test_another_thread_calls_the_model_meanwhile(tmp_path: Path) -> None:
    def act(training: Training) -> None:
        inputs = torch.randn(4, 20)
        for _ in range(10):
            with torch.random.fork_rng():
                thread = threading.Thread(target=lambda: training.model(inputs))
                thread.start()
                thread.join()
            training.step()

    with watched_training(in_c=True) as training:
        act(training)
        assert training.run._guard.failures == 0


def test_level_and_commands_reach_a_followed_training(tmp_path: Path) -> None:
    def act(training: Training) -> None:
        training.run.set_level("advanced")
        training.steps(30)

    journal = assert_same(tmp_path, act)
    assert [event.kind for event in journal.latest_events] == ["level_changed"]


def test_exception_is_reported_with_the_step_that_it_ended(tmp_path: Path) -> None:
    def act(training: Training) -> None:
        training.steps(2)
        try:
            training.step(lambda loss: loss + torch.zeros(3))
        except RuntimeError as error:
            training.run._report_exception(error, error.__traceback__)

    (event,) = assert_same(tmp_path, act).latest_events
    assert (event.kind, event.step) == ("exception", ARMED_AT + 2)


def test_level_off_leaves_a_count_of_the_steps_alone(tmp_path: Path) -> None:
    with watched_training(in_c=True) as training:
        tracker = training.run._tracker
        assert tracker is not None
        training.run.set_level("off")
        training.steps(20)
        assert tracker.fast.is_counting and tracker.last_step == ARMED_AT + 19
        assert "__call__" not in type(training.model).__dict__
        assert torch.autograd.backward.__code__.co_filename.endswith("torch/autograd/__init__.py")
        training.run.set_level("basic")
        training.steps(5)
        assert not tracker.fast.is_counting and tracker.last_step == ARMED_AT + 24
    frames = run_of(tmp_path / "spool").frames
    assert {*range(ARMED_AT + 1, ARMED_AT + 19)}.isdisjoint({frame.step for frame in frames})
    assert {*range(ARMED_AT + 22, ARMED_AT + 25)} <= {frame.step for frame in frames}


def test_steps_are_followed_once_the_first_looks_have_ended() -> None:
    """By the product's own periods, which the other tests shorten."""
    training = begin(Training, Planted, {})
    with training.run:
        training.steps(40)
        assert not training.is_followed
        training.steps(70)
        assert training.is_followed


def test_samples_are_judged_in_the_order_of_their_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every 50 steps one goes the slow way, for its update ratios, and C follows the next ones."""
    judged: list[int] = []
    take = SampleJudge.take

    def noted(self: SampleJudge, measured: MeasuredStep, *stack: Any) -> Verdict:
        judged.append(measured.step)
        return take(self, measured, *stack)

    monkeypatch.setattr(SampleJudge, "take", noted)
    with watched_training(in_c=True) as training:
        for _ in range(10):
            training.steps(10)
            training.run.flush()
    assert {50, 60, 100} <= set(judged)
    assert judged == sorted(judged)


def logged_validation(training: Training) -> None:
    training.run.log(val_loss=1.0)


def evaluated(training: Training) -> None:
    inputs, targets = training.batch()
    with torch.no_grad():
        F.cross_entropy(training.model.eval()(inputs), targets)
    training.model.train()


@pytest.mark.parametrize("validate", [logged_validation, evaluated])
def test_validation_loss_reaches_the_detectors_with_the_loss_of_its_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, validate: Act
) -> None:
    told: list[tuple[int, float | None]] = []
    take = SampleJudge.take

    def noted(self: SampleJudge, measured: MeasuredStep, *stack: Any) -> Verdict:
        if measured.logged:
            told.append((measured.step, measured.loss.value))
        return take(self, measured, *stack)

    def act(training: Training) -> None:
        for _ in range(4):
            training.steps(5)
            validate(training)
        training.steps(1)

    monkeypatch.setattr(SampleJudge, "take", noted)
    assert_same(tmp_path, act)
    assert [step for step, _ in told[:4]] == [ARMED_AT + at for at in (4, 9, 14, 19)]
    assert told[:4] == told[4:]
