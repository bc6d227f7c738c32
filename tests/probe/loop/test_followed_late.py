"""Steps that C follows and Python measures, on a stand-in for a device: recorded as in the slow way.

So it is with `verdict="after_update"` on the CPU, where the same way is taken.
"""

from __future__ import annotations

import logging
import math
import os
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from armed_training import ARMED_AT, Planted, Training, calls_state, watched_training
from both_ways import Act, assert_same, recorded
from device_stand_in import Device, device_stand_in
from followed_kinds import (
    Accumulating,
    OwnLoss,
    Scaled,
    ScaledAndClipped,
    Single,
    Structured,
    Undivided,
    WithResult,
)
from forked_scripts import ForkedScripts
from journals import Journal
from run_numbers import run_of
from thinned import some, thinned
from torch import Tensor, nn
from torch.nn import functional as F

from probe.loop import followed_late, step_queue
from probe.loop.followed_late import LateFollowing
from probe.measure import update_meter
from probe.measure.kernels import hot_binding
from probe.measure.statistics import late_check
from probe.measure.statistics.statistics import tensor_statistics

pytestmark = [
    pytest.mark.skipif(hot_binding.status().calls is None, reason=hot_binding.status().reason),
    pytest.mark.usefixtures("nothing_switched_off", "one_thread"),
]


class Guilty(Planted):
    """`bad` is called with the hidden values of every forward, a replay's too, as long as it is there.

    A step that goes wrong by it comes from the same lines as all others, and is followed up to there.
    """

    bad: Callable[[Tensor], Tensor] | None = None

    def forward(self, inputs: Tensor) -> Tensor:
        self.fault = self.bad or self.fault
        return super().forward(inputs)


class Logging(Training):
    """Logs everywhere while it is asked to."""

    logs = False

    def step(self, change: Any = None) -> Tensor:
        inputs, targets = self.batch()
        self.optimizer.zero_grad()
        self.log("early")
        loss = F.cross_entropy(self.model(inputs), targets)
        self.log("after_forward")
        loss.backward()
        self.log("after_backward")
        self.optimizer.step()
        self.log("after_step")
        return loss

    def log(self, name: str) -> None:
        if self.logs:
            self.run.log(**{name: 1.0, f"{name}_tensor": torch.ones(())})


class Clipped(Single):
    """Clipped by torch's function."""

    def update(self) -> None:
        nn.utils.clip_grad_norm_(self.model.parameters(), 0.05)
        super().update()


class ClippedTwice(Clipped):
    """The second one is another one from some step on."""

    limits = (0.05, 0.01)

    def update(self) -> None:
        nn.utils.clip_grad_norm_(self.model.parameters(), self.limits[0])
        if self.limits[1] < 0.01:
            nn.utils.clip_grad_norm_(self.model.parameters(), self.limits[1])
        self.optimizer.step()


KINDS: dict[str, tuple[type[Single] | type[Accumulating], type[Planted]]] = {
    "single": (Single, Planted),
    "micro-steps": (Accumulating, Planted),
    "undivided": (Undivided, Planted),
    "clipped": (Clipped, Planted),
    "own loss": (OwnLoss, Planted),
    "scaled": (Scaled, Planted),
    "scaled and clipped": (ScaledAndClipped, Planted),
    "result": (WithResult, Structured),
}


@pytest.fixture
def device() -> Iterator[Device]:
    with device_stand_in() as stand_in:
        yield stand_in
    followed_late._distrusted.clear()


def hot_steps() -> int:
    return int(calls_state().steps)


def steps_in_c(training: Training, count: int) -> int:
    """Train; returns how many of the steps C has followed to their end."""
    followed = 0
    for _ in range(count):
        before = hot_steps() if training.is_followed else -1
        training.steps(1)
        followed += training.is_followed and hot_steps() == before + 1
    return followed


# ------------------------------------------------------------------------------------------ healthy steps


@pytest.mark.parametrize("kind", some([*KINDS][::-1], 4))
def test_healthy_steps_on_a_device_are_recorded_as_in_the_slow_way(
    tmp_path: Path, device: Device, kind: str
) -> None:
    loop, model = KINDS[kind]
    journal = assert_same(tmp_path, lambda training: training.steps(95), kind=loop, model=model)
    assert sorted({frame.step for frame in journal.frames}) == [*range(ARMED_AT + 95)]
    assert all("grad_norm" in frame.scalars for frame in journal.frames if frame.columns)


def test_most_steps_on_a_device_are_followed(device: Device) -> None:
    with watched_training(in_c=True) as training:
        assert steps_in_c(training, 100) >= 96


def test_followed_steps_on_a_device_leave_the_weights_alone(tmp_path: Path, device: Device) -> None:
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


def test_nothing_of_a_followed_step_is_read_before_the_next_one_ends(
    device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The recorder's thread reads them where a step takes long; the training thread is what matters here.
    monkeypatch.setattr(step_queue, "JUDGE_S", 1e9)
    monkeypatch.setattr(followed_late, "_CHECKED_STEPS", 0)
    with watched_training(in_c=True) as training:
        for _ in range(20):
            copies, reads = device.copies, device.reads
            training.steps(1)
            # Statistics and loss of this step are on their way; those of the one before were read.
            assert device.copies - copies in (2, 3)  # norms of parameters are due now and then
            assert device.reads - reads in (2, 3)


def test_values_that_arrive_on_the_recorders_thread_are_the_same(
    tmp_path: Path, device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(step_queue, "JUDGE_S", 0.0)

    def act(training: Training) -> None:
        for _ in range(8):
            training.steps(1)
            training.run.flush()

    assert_same(tmp_path, act)


def log_an_evaluation(training: Training) -> None:
    training.steps(3)
    training.run.log(val_loss=1.0)
    training.steps(3)


def leave_the_update_out(training: Training) -> None:
    inputs, targets = training.batch()
    F.cross_entropy(training.model(inputs), targets).backward()
    training.steps(3)


def change_the_rate(training: Training) -> None:
    for group in training.optimizer.param_groups:
        group["lr"] = 1e-3
    training.steps(5)


def clip_by_our_own(training: Training) -> None:
    for _ in range(3):
        inputs, targets = training.batch()
        training.optimizer.zero_grad()
        F.cross_entropy(training.model(inputs), targets).backward()
        training.run.clip_gradients(0.01)
        training.optimizer.step()


def raising(hidden: Tensor) -> Tensor:
    raise RuntimeError("planted")


def raising_in_the_backward(hidden: Tensor) -> Tensor:
    hidden.register_hook(raising)  # type: ignore[no-untyped-call]
    return hidden


def raise_in_the_forward(training: Training, bad: Callable[[Tensor], Tensor] = raising) -> None:
    with planted(training, bad), pytest.raises(RuntimeError, match="planted"):
        training.steps(1)
    training.steps(3)


def raise_in_the_backward(training: Training) -> None:
    raise_in_the_forward(training, raising_in_the_backward)


def look_closer(training: Training) -> None:
    training.run.set_level("advanced")
    training.steps(12)
    training.run.set_level("basic")
    training.steps(12)


@pytest.mark.parametrize(
    "act",
    [
        log_an_evaluation,
        leave_the_update_out,
        change_the_rate,
        clip_by_our_own,
        raise_in_the_forward,
        raise_in_the_backward,
        look_closer,
    ],
)
def test_unusual_step_on_a_device_is_recorded_as_in_the_slow_way(
    tmp_path: Path, device: Device, act: Act
) -> None:
    assert_same(tmp_path, act, model=Guilty)


def test_values_logged_in_followed_steps_stay_with_them(tmp_path: Path, device: Device) -> None:
    def act(training: Training) -> None:
        assert isinstance(training, Logging)
        training.logs = True
        training.steps(6)

    journal = assert_same(tmp_path, act, kind=Logging)
    logged = [frame for frame in journal.frames if "log/after_backward" in frame.scalars]
    assert [frame.step for frame in logged] == [*range(ARMED_AT, ARMED_AT + 6)]


def test_clipping_that_says_no_more_what_is_left_is_measured_anew(tmp_path: Path, device: Device) -> None:
    def act(training: Training) -> None:
        training.steps(3)
        training.limits = (0.05, 0.001)  # type: ignore[attr-defined]
        training.steps(3)

    journal = assert_same(tmp_path, act, kind=ClippedTwice)
    left = [frame.scalars["grad_norm_clipped"] for frame in journal.frames if frame.step >= ARMED_AT]
    assert left == pytest.approx([0.05] * 3 + [0.001] * 3, rel=1e-3)


# ------------------------------------------------------------------------------------------------- faults


def bad_root(hidden: Tensor) -> Tensor:
    return hidden + torch.sqrt((hidden * 0).sum())


def bad_quotient(hidden: Tensor) -> Tensor:
    return hidden / torch.zeros(()) * 0


@contextmanager
def planted(training: Training, bad: Callable[[Tensor], Tensor]) -> Iterator[None]:
    """Have the forwards of a training go wrong."""
    assert isinstance(training.model, Guilty)
    training.model.bad = bad
    try:
        yield
    finally:
        training.model.bad = training.model.fault = None


def fault_in(*steps: int, fault: Any = bad_root, goes_back: bool = True) -> Act:
    """After each bad step the script goes back to the weights of before."""

    def act(training: Training) -> None:
        for step in range(max(steps) + 4):
            before = [parameter.detach().clone() for parameter in training.model.parameters()]
            if step not in steps:
                training.steps(1)
                continue
            with planted(training, fault):
                training.steps(1)
            if goes_back:
                with torch.no_grad():
                    for parameter, value in zip(training.model.parameters(), before, strict=True):
                        parameter.copy_(value)
                        training.optimizer.state[parameter]["momentum_buffer"].zero_()

    return act


@pytest.mark.parametrize("fault", [bad_root, bad_quotient])
def test_fault_is_found_one_step_late_and_the_next_one_replayed(
    tmp_path: Path, device: Device, fault: Any
) -> None:
    journal = assert_same(tmp_path, fault_in(5, 9, fault=fault), model=Guilty)
    first, second = (event for event in journal.latest_events if event.kind.startswith("nonfinite_"))
    assert (first.step, first.origin) == (ARMED_AT + 5, None)
    assert "judged after its update" in first.message
    assert second.step == ARMED_AT + 9 and second.origin is not None
    assert "sqrt" in second.origin.op.lower() or "div" in second.origin.op.lower()


def test_step_after_a_late_fault_is_judged_before_its_update(tmp_path: Path, device: Device) -> None:
    """Its weights are ruined, and so is what it computes of them."""
    journal = assert_same(tmp_path, fault_in(5, goes_back=False), model=Guilty)
    (event,) = (event for event in journal.latest_events if event.severity == "critical")
    assert event.step == ARMED_AT + 5 and event.count > 1


@pytest.mark.parametrize("kind", ["micro-steps", "clipped", "scaled", "own loss"])
def test_fault_in_other_loops_on_a_device_gives_the_same_events(
    tmp_path: Path, device: Device, kind: str
) -> None:
    loop, _ = KINDS[kind]
    journal = assert_same(tmp_path, fault_in(5, goes_back=False), kind=loop, model=Guilty)
    assert ARMED_AT + 5 in {event.step for event in journal.latest_events}


def test_unusual_input_before_a_late_fault_is_named(tmp_path: Path, device: Device) -> None:
    """The inputs of followed steps are kept for what an event says of them."""

    def act(training: Training) -> None:
        training.steps(6)
        inputs, targets = training.batch()
        inputs[0, 0] = 1e30
        training.optimizer.zero_grad()
        output = training.model(inputs) * 1e30
        F.cross_entropy(output, targets).backward()
        training.optimizer.step()
        training.steps(2)

    journal = assert_same(tmp_path, act)
    said = next(event.message for event in journal.latest_events if event.step == ARMED_AT + 6)
    assert "input" in said


def test_inputs_of_the_newest_steps_are_those_of_the_slow_way(device: Device) -> None:
    kept = []
    for in_c in (True, False):
        with watched_training(in_c=in_c) as training:
            training.steps(12)
            box = training.run._incidents.black_box  # type: ignore[union-attr]
            kept.append(
                [
                    (batch.step, batch.nbytes, batch.arguments[0].again()[2]["args[0]"].sum().item())
                    for batch in box.before(10**9)
                ]
            )
    assert kept[0] == kept[1]
    assert len(kept[0]) > 3


def test_inputs_go_with_what_keeps_them_in_the_slow_way(device: Device) -> None:
    batches: list[weakref.ref[Tensor]] = []

    class Noted(Training):
        def batch(self) -> tuple[Tensor, Tensor]:
            inputs, targets = super().batch()
            batches.append(weakref.ref(inputs.untyped_storage()))
            return inputs, targets

    with watched_training(in_c=True, kind=Noted, black_box_steps=2) as training:
        assert steps_in_c(training, 10) == 10
        assert [batch() is not None for batch in batches[-5:]] == [False, False, False, True, True]


def test_device_that_has_just_been_waited_for_is_judged_before_the_update(
    tmp_path: Path, device: Device
) -> None:
    device.is_idle = True
    journal = assert_same(tmp_path, fault_in(5), model=Guilty)
    event = next(event for event in journal.latest_events if event.kind == "nonfinite_gradient")
    assert event.step == ARMED_AT + 5 and event.origin is not None, event.message


def test_ruined_parameters_are_told_where_the_device_is_idle(tmp_path: Path, device: Device) -> None:
    def act(training: Training) -> None:
        assert isinstance(training.model, Planted)
        training.steps(10)
        with torch.no_grad():
            training.model.first.bias[0] = -math.inf  # its unit is silent: nothing else goes wrong
        training.steps(3)

    device.is_idle = True
    journal = assert_same(tmp_path, act)
    assert [(event.kind, event.step) for event in journal.latest_events] == [
        ("nonfinite_parameter", ARMED_AT + 10)
    ]


@pytest.mark.parametrize(("in_c", "steps_until_there"), thinned([True, False], [1, 3, 1000], every=2))
def test_how_far_an_update_went_is_told_once_the_device_says_it(
    tmp_path: Path, device: Device, monkeypatch: pytest.MonkeyPatch, in_c: bool, steps_until_there: int
) -> None:
    """At the next step or two, not at the next sampled one; what is on its way at the end is waited for."""
    begun: dict[int, int] = {}
    expected, _ = recorded(tmp_path / "at_once", lambda training: training.steps(60), in_c=in_c)

    def has_arrived(pending: Any) -> bool:
        begun.setdefault(id(pending), device.copies)
        return device.copies - begun[id(pending)] >= 2 * steps_until_there  # a step has two: gradients, loss

    monkeypatch.setattr(update_meter._Pending, "is_ready", property(has_arrived))
    journal, _ = recorded(tmp_path / "later", lambda training: training.steps(60), in_c=in_c)
    assert ratios_of(journal) == ratios_of(expected)
    assert set(ratios_of(journal)) == {0, 50}
    if steps_until_there < 10:
        at = next(
            i for i, one in enumerate(journal.frames) if one.step == 50 and "update_ratio" in one.scalars
        )
        assert max(frame.step for frame in journal.frames[:at]) <= 50 + steps_until_there + 1


def ratios_of(journal: Journal) -> dict[int, float]:
    return {
        frame.step: frame.scalars["update_ratio"]
        for frame in journal.frames
        if "update_ratio" in frame.scalars
    }


# --------------------------------------------------------------------------------- what does not come back


def test_values_that_cannot_be_read_end_the_lateness_and_nothing_else(
    tmp_path: Path, device: Device, caplog: pytest.LogCaptureFixture
) -> None:
    weights = []
    for in_c in (True, False):
        training: Training | None = None
        spool = tmp_path / str(in_c)
        with pytest.raises(AssertionError, match="a part of the probe has failed"):
            with watched_training(in_c=in_c, spool=spool) as training:
                training.steps(3)
                device.fails = True
                training.steps(1)
                device.fails = False
                training.steps(5)
        assert training is not None
        weights.append([parameter.detach().clone() for parameter in training.model.parameters()])
    assert all(map(torch.equal, *weights))
    steps = [
        {frame.step for frame in run_of(tmp_path / name).frames if frame.columns}
        for name in ("True", "False")
    ]
    assert steps[0] == steps[1]
    assert ARMED_AT + 1 in steps[0]


_ENDS: str = """
import os, sys
import torch
from armed_training import watched_training
from device_stand_in import device_stand_in

torch.set_num_threads(1)
with device_stand_in():
    with watched_training(in_c=sys.argv[1] == "True", spool=sys.argv[2], connect="") as training:
        training.steps(7)
        os._exit(0)
"""


def test_process_that_ends_meanwhile_loses_what_the_slow_way_loses(
    tmp_path: Path, forked: ForkedScripts
) -> None:
    folders = [str(Path(__file__).parents[depth]) for depth in (1, 3)] + [
        str(Path(__file__).parents[2] / "integration")
    ]
    steps = []
    for in_c in (True, False):
        spool = tmp_path / str(in_c)
        ended = forked.start(
            ["-c", _ENDS, str(in_c), str(spool)], tmp_path, {"PYTHONPATH": os.pathsep.join(folders)}
        )
        assert ended.finish()[0] == 0
        steps.append([frame.step for frame in run_of(spool).frames])
    assert steps[0] == steps[1]
    assert steps[0][-1] in (ARMED_AT + 5, ARMED_AT + 6)


def test_interrupt_reaches_the_script(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(self: LateFollowing, *given: Any) -> bool:
        raise KeyboardInterrupt

    with watched_training(in_c=True) as training:
        training.steps(2)
        with monkeypatch.context() as patch:
            patch.setattr(LateFollowing, "_finish", interrupted)
            with pytest.raises(KeyboardInterrupt):
                training.steps(1)
        training.steps(3)


def test_failure_of_ours_leaves_the_rest_to_the_slow_way(
    device: Device, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def failing(self: LateFollowing, *given: Any) -> bool:
        raise RuntimeError("planted")

    with pytest.raises(AssertionError, match="a part of the probe has failed"):
        with watched_training(in_c=True) as training:
            with monkeypatch.context() as patch:
                patch.setattr(LateFollowing, "_finish", failing)
                training.steps(1)
            training.steps(100)
            assert not training.is_followed
    assert "training goes on" in caplog.text


# -------------------------------------------------------------------------------------- what is not believed


def test_device_on_which_other_values_arrive_is_not_followed_again(
    tmp_path: Path, device: Device, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with watched_training(in_c=True, spool=tmp_path) as training, caplog.at_level(logging.WARNING):
        monkeypatch.setattr(followed_late, "difference", lambda late, direct: "norm 1, not 2")
        training.run._tracker.fast._followed._late._unchecked = 1  # type: ignore[union-attr, attr-defined]
        training.steps(1)
        assert not training.is_followed
        training.steps(100)
        assert not training.is_followed
    assert "what arrives from cpu is not what is measured by waiting for it (norm 1, not 2)" in caplog.text
    assert [frame.step for frame in run_of(tmp_path).frames if frame.columns] == [*range(ARMED_AT + 101)]


def test_first_followed_steps_are_measured_twice(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    compared = []

    def compare(late: Any, direct: Any) -> str | None:
        compared.append(late_check.difference(late, direct))
        return None

    monkeypatch.setattr(followed_late, "difference", compare)
    with watched_training(in_c=True) as training:
        training.steps(10)
    assert compared == [None] * 3


def test_difference_names_what_is_not_the_same() -> None:
    generator = torch.Generator().manual_seed(0)
    tensors = [torch.randn(40, generator=generator), 1 + torch.randn(300, generator=generator), None]
    late, direct = tensor_statistics(tensors), tensor_statistics(tensors)
    assert late_check.difference(late, direct) is None
    for row, name in enumerate(("norm", "max_abs", "another mean", "another std")):
        block = direct.block.copy()
        block[row, 1] += 0.01 * direct.max_abs[1]
        said = late_check.difference(late, direct._replace(block=block))
        assert said is not None and said.startswith(name)
    others = [torch.randn(40, generator=generator), None, None]
    assert late_check.difference(late, tensor_statistics(others)) == "other tensors are missing"
    bad = late._replace(is_finite=False)
    assert late_check.difference(bad, direct) == "one is finite, the other is not"
    assert late_check.difference(bad, direct._replace(is_finite=False)) is None


def test_device_is_tried_with_values_of_before_they_were_cleared(device: Device) -> None:
    assert late_check.try_device(torch.device("cpu")) is None


# -------------------------------------------------------------------------- a late verdict on the CPU itself


@pytest.mark.parametrize("kind", ["single", "micro-steps", "clipped"])
def test_late_verdict_on_the_cpu_is_followed_and_recorded_as_in_the_slow_way(
    tmp_path: Path, kind: str
) -> None:
    loop, _ = KINDS[kind]
    followed: list[int] = []

    def act(training: Training) -> None:
        followed.append(steps_in_c(training, 20))
        fault_in(1, goes_back=False)(training)

    assert_same(tmp_path, act, kind=loop, model=Guilty, verdict="after_update")
    assert followed == [20, 0]
