"""The C callbacks of a healthy step: they write what torch says, and leave alone what they refuse."""

from __future__ import annotations

import gc
import math
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from probe.attach.unseen_updates import MarkedParameter
from probe.delivery.recorder.ring import Ring
from probe.delivery.recorder.ring_format import (
    RAW,
    UPDATE,
    RawUpdate,
    Template,
    frame_of,
    metrics_of,
    read_raw,
    read_update,
)
from probe.loop.armed_loop import ArmedLoop, Plan
from probe.loop.loop_shape import CallShape, LoopShape
from probe.measure.kernels import compile, hot_binding
from probe.measure.kernels.hot_binding import (
    AFTER_BACKWARD,
    AFTER_FORWARD,
    IDLE,
    IN_FORWARD,
    NEVER,
    OWN_SCALARS,
)
from probe.measure.update_meter import UpdateMeter, UpdatePlaces
from probe.wire import Frame, decode_record

pytestmark = pytest.mark.skipif(
    hot_binding.status().calls is None, reason=f"no C callbacks here: {hot_binding.status().reason}"
)


class Quiet:
    """A follower that is told of what C cannot follow, and only counts it."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def forward_was_odd(self, output: Any) -> None:
        self.told.append("forward was odd")

    def forward_raised(self, error: BaseException) -> None:
        self.told.append("forward raised")

    def backward_was_odd(self, tensors: Any) -> None:
        self.told.append("backward was odd")

    def backward_raised(self, tensors: Any) -> None:
        self.told.append("backward raised")


class Training:
    """A model whose steps are given to the callbacks by hand, as the wrappers do."""

    def __init__(
        self,
        model: nn.Module,
        *,
        norms_every: int = 0,
        ratios_every: int = 0,
        groups: int = 1,
        room: int = 1 << 20,
        site: Any = (),
        micro_steps: int = 1,
        outputs: int = 1,
        frozen: Sequence[nn.Parameter] = (),
        **further: Any,
    ) -> None:
        calls = hot_binding.status().calls
        assert calls is not None
        self.model, self.calls, self.state = model, calls, calls.state
        self.looks: list[int] = []
        self.next_look_ns = 0
        self.parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        parts = [self.parameters[at::groups] for at in range(groups)]
        self.optimizer = torch.optim.SGD(
            [{"params": part, "lr": 0.1 * (at + 1)} for at, part in enumerate(parts)]
        )
        self.ring = Ring(None, room)
        self.rates = ("lr",) if groups == 1 else tuple(f"lr/{at}" for at in range(groups))
        template = self.ring.write_template(
            Template(layout=7, stage="local", scalars=[*OWN_SCALARS, *self.rates, *further.pop("names", ())])
        )
        assert template is not None
        self.loop = ArmedLoop(calls)
        zeros, target = torch.zeros(1, 2, requires_grad=True), torch.zeros(1, dtype=torch.long)
        call = CallShape(
            arguments=1,
            keywords=0,
            tensors=1,
            outputs=outputs,
            loss_node=type(F.cross_entropy(zeros, target).grad_fn),
            loss_core=NODE,
            looks_at_loss="look_at_loss" in further,
            synchronises=False,
            forward_site=site,
            backward_site=(),
        )
        shape = LoopShape(
            root=id(model),
            optimizer=id(self.optimizer),
            groups=tuple(map(id, self.optimizer.param_groups)),
            layout=7,
            calls=(call,) * micro_steps,
            clips=False,
            has_no_update=False,
            is_scaled=False,
            stage="local",
            rates=self.rates,
            autocast=((), True),
            is_late=False,
            fault=None,
        )
        self.places = self._places() if ratios_every else None
        plan = Plan(
            root=model,
            optimizer=self.optimizer,
            parameters=self.parameters,
            draws=False,
            note_stack=None,
            glance=None,
            on_news=self._look,
            norms_every=norms_every,
            ratios_every=ratios_every,
            places=self.places,
            input_limit_bytes=1 << 20,
            output_limit_bytes=1 << 20,
            ring=self.ring,
            template=template,
            frozen=frozen,
            **further,
        )
        assert self.loop.follow(shape, plan)
        self.follower = Quiet()
        self.loop.start(self.follower, 100, slow_at=NEVER, last_end_ns=time.perf_counter_ns())

    def _look(self) -> int:
        self.looks.append(self.state.step)
        return self.next_look_ns

    def _places(self) -> UpdatePlaces:
        meter = UpdateMeter()
        meter.before(self.parameters)
        updated = {id(p) for group in self.optimizer.param_groups for p in group["params"]}
        places = meter.places(self.parameters, updated)
        assert places is not None
        return places

    def forward(self, inputs: Any) -> Tensor:
        assert self.calls.begin_forward(self.model, (inputs,), {}) is True
        output: Tensor = self.model(inputs)
        assert self.calls.end_forward(output) is True
        return output

    def backward(self, output: Tensor, targets: Tensor) -> float:
        loss = F.cross_entropy(output, targets)
        assert self.calls.begin_backward(loss, None) is True
        loss.backward()
        assert self.calls.end_backward() is True
        return loss.item()

    def update(self) -> bool | None:
        is_followed = self.calls.before_step(self.optimizer, (self.optimizer,), {})
        self.optimizer.step()
        if is_followed:
            assert self.calls.after_step(self.optimizer) is True
        return is_followed

    def step(self, inputs: Tensor, targets: Tensor) -> float:
        self.optimizer.zero_grad()
        loss = self.backward(self.forward(inputs), targets)
        assert self.update() is True
        return loss

    @property
    def records(self) -> list[bytes]:
        return [bytes(record.payload) for record in self.ring.records() if record.kind == RAW]

    @property
    def updates(self) -> list[RawUpdate]:
        return [read_update(record.payload) for record in self.ring.records() if record.kind == UPDATE]


@pytest.fixture
def make() -> Iterator[Callable[..., Training]]:
    made: list[Training] = []

    def training(model: nn.Module, **options: Any) -> Training:
        made.append(Training(model, **options))
        return made[-1]

    yield training
    for one in made:
        one.loop.release()


NODE = type(torch.zeros(()).requires_grad_().exp().grad_fn)
"""Of all losses, as far as it is told to C."""


def batch(rows: int = 5) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(3)
    return torch.randn(rows, 4, generator=generator), torch.randint(3, (rows,), generator=generator)


def small(dtype: torch.dtype = torch.float32) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3)).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_record_says_what_torch_says(make: Callable[..., Training], dtype: torch.dtype) -> None:
    training = make(small(dtype))
    inputs, targets = batch()
    loss = training.step(inputs.to(dtype), targets)
    (payload,) = training.records
    raw = read_raw(payload)
    gradients = [parameter.grad.double() for parameter in training.parameters if parameter.grad is not None]
    reference = np.array(
        [
            [float(gradient.norm()) for gradient in gradients],
            [float(gradient.abs().max()) for gradient in gradients],
            [float(gradient.mean()) for gradient in gradients],
            [float(gradient.std(correction=0)) for gradient in gradients],
        ]
    )
    np.testing.assert_allclose(raw.block, reference, rtol=1e-5, atol=1e-9)
    assert (raw.step, raw.samples, raw.loss, raw.loss_raw) == (100, 5.0, loss, loss)
    assert raw.total_norm == pytest.approx(math.hypot(*reference[0]), rel=1e-6)


def test_frame_has_the_names_of_the_template(make: Callable[..., Training]) -> None:
    training = make(small(), groups=2)
    training.step(*batch())
    (payload,) = training.records
    template = training.ring.raw_template(memoryview(payload))
    assert template is not None
    frame = frame_of(template, read_raw(payload))
    assert {"lr/0": 0.1, "lr/1": 0.2}.items() <= frame.scalars.items()
    assert "grad_norm_clipped" not in frame.scalars and frame.scalars["step_time_s"] > 0
    assert (frame.layout, frame.stage) == (7, "local")


def test_missing_gradients_have_a_bitmap(make: Callable[..., Training]) -> None:
    model = small()
    model.unused = nn.Linear(2, 2)
    training = make(model)
    inputs, targets = batch()
    training.optimizer.zero_grad()
    assert training.calls.begin_forward(model, (inputs,), {}) is True
    output = model[2](model[1](model[0](inputs)))
    assert training.calls.end_forward(output) is True
    training.backward(output, targets)
    assert training.update() is True
    raw = read_raw(training.records[0])
    assert np.unpackbits(np.frombuffer(raw.missing, np.uint8))[:6].tolist() == [0, 0, 0, 0, 1, 1]


def test_channels_last_gradients_are_read_as_they_lie(make: Callable[..., Training]) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(2, 4, 3), nn.Flatten(), nn.Linear(16, 3)).to(
        memory_format=torch.channels_last
    )
    training = make(model)
    inputs = torch.randn(3, 2, 4, 4).to(memory_format=torch.channels_last)
    training.step(inputs, torch.tensor([0, 1, 2]))
    weight = training.parameters[0]
    assert weight.grad is not None and not weight.grad.is_contiguous()
    assert read_raw(training.records[0]).block[0, 0] == pytest.approx(float(weight.grad.norm()), rel=1e-6)


def test_parameters_are_measured_when_they_are_due(make: Callable[..., Training]) -> None:
    training = make(small(), norms_every=2)
    expected = [float(parameter.detach().double().norm()) for parameter in training.parameters]
    for _ in range(2):
        training.step(*batch())
    with_norms, without = training.records
    norms = np.frombuffer(with_norms[-16:], np.float32)
    np.testing.assert_allclose(norms, expected, rtol=1e-6)
    assert len(with_norms) - len(without) == 16


def measured_by_torch(before: list[Tensor], after: list[Tensor]) -> tuple[list[float], float]:
    """Ratios, and the one of all, in float64."""
    changes = [float((b - a).norm()) for a, b in zip(before, after, strict=True)]
    lengths = [float(a.norm()) for a in before]
    ratios = [change / length if length else 0.0 for change, length in zip(changes, lengths, strict=True)]
    return ratios, math.hypot(*changes) / math.hypot(*lengths)


def doubles(training: Training) -> list[Tensor]:
    return [parameter.detach().double().clone() for parameter in training.parameters]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_update_record_says_what_torch_says(make: Callable[..., Training], dtype: torch.dtype) -> None:
    training = make(small(dtype), ratios_every=2)
    inputs, targets = batch()
    for _ in range(3):
        before = doubles(training)
        training.step(inputs.to(dtype), targets)
        if training.state.step == 101:
            ratios, total = measured_by_torch(before, doubles(training))
    first, second = training.updates
    assert (first.step, second.step) == (100, 102)
    np.testing.assert_allclose(first.ratios, ratios, rtol=1e-6)
    assert first.total == pytest.approx(total, rel=1e-6)
    assert not first.missing.any()
    assert [read_raw(payload).has_update for payload in training.records] == [True, False, True]


def test_update_is_the_meters_to_the_last_bit(make: Callable[..., Training]) -> None:
    training = make(small(), ratios_every=1)
    meter = UpdateMeter()
    training.optimizer.zero_grad()
    training.backward(training.forward(batch()[0]), batch()[1])
    assert training.calls.before_step(training.optimizer, (training.optimizer,), {}) is True
    meter.before(training.parameters)
    training.optimizer.step()
    meter.after(training.parameters, step=100)
    assert training.calls.after_step(training.optimizer) is True
    ratios, (update,) = meter.read(), training.updates
    assert ratios is not None
    np.testing.assert_array_equal(update.ratios, ratios.ratio.values)
    assert update.total == pytest.approx(ratios.total, rel=1e-15)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("width", [16_400, 33_001])
def test_large_parameters_are_copied_whole(
    make: Callable[..., Training], width: int, dtype: torch.dtype
) -> None:
    """Past the caches; their places begin and end in the middle of a line of memory."""
    odd = nn.Sequential(nn.Linear(4, 1), nn.Linear(1, width), nn.Linear(width, 3))
    training = make(odd.to(dtype), ratios_every=1)
    inputs, targets = batch()
    training.optimizer.zero_grad()
    training.backward(training.forward(inputs.to(dtype)), targets)
    before = [parameter.detach().clone() for parameter in training.parameters]
    assert training.calls.before_step(training.optimizer, (training.optimizer,), {}) is True
    assert training.places is not None
    for index, parameter in enumerate(before):
        assert torch.equal(training.places.copy.views[index], parameter)
    training.optimizer.step()
    assert training.calls.after_step(training.optimizer) is True
    ratios, _ = measured_by_torch([one.double() for one in before], doubles(training))
    np.testing.assert_allclose(training.updates[0].ratios, ratios, rtol=1e-6)


def odd_update(training: Training, name: str) -> list[bool]:
    """Make the update of the step under way an odd one; returns where there is no ratio."""
    first, bias = training.parameters[0], training.parameters[1]
    with torch.no_grad():
        if name == "data replaced":
            first.data = (first * 1.5).clone()
        elif name == "another type":
            first.data = first.double()
        elif name == "another size":
            first.data = torch.ones(2, 2)
        elif name == "tiny change":
            bias += 1e-300
        elif name == "huge change":
            bias += 1e200
        elif name == "ruined":
            bias.fill_(math.nan)
    return [name in ("another type", "another size"), False, False, False]


@pytest.mark.parametrize(
    "name",
    ["data replaced", "another type", "another size", "tiny change", "huge change", "ruined", "nothing"],
)
def test_odd_updates_are_measured_as_far_as_they_can_be(make: Callable[..., Training], name: str) -> None:
    training = make(small(torch.float64 if "change" in name else torch.float32), ratios_every=1)
    inputs, targets = batch()
    training.optimizer.zero_grad()
    training.backward(training.forward(inputs.to(training.parameters[0].dtype)), targets)
    with torch.no_grad():
        training.parameters[1].zero_().add_(1e-300 if name == "tiny change" else 1.0)
    before = doubles(training)
    assert training.calls.before_step(training.optimizer, (training.optimizer,), {}) is True
    missing = odd_update(training, name)
    assert training.calls.after_step(training.optimizer) is True
    (update,) = training.updates
    assert update.missing.tolist() == missing
    kept = [at for at, is_missing in enumerate(missing) if not is_missing]
    after = doubles(training)
    # `hypot` neither overflows nor vanishes.
    reference = [
        math.hypot(*(after[at] - before[at]).flatten().tolist()) / math.hypot(*before[at].flatten().tolist())
        for at in kept
    ]
    np.testing.assert_allclose(update.ratios[kept], reference, rtol=1e-6)


def test_parameter_that_has_grown_since_is_not_copied(make: Callable[..., Training]) -> None:
    training = make(small(), ratios_every=1)
    places = training.places
    assert places is not None
    bias = training.parameters[1]
    beside = places.copy.views[2].clone()
    training.optimizer.zero_grad()
    training.backward(training.forward(batch()[0]), batch()[1])
    gradient, bias.grad = bias.grad, None
    bias.data = torch.full((100_000,), 7.0)
    bias.grad = torch.ones_like(bias)
    assert gradient is not None
    assert training.calls.before_step(training.optimizer, (training.optimizer,), {}) is True
    assert training.calls.after_step(training.optimizer) is True
    (update,) = training.updates
    assert update.missing.tolist() == [False, True, False, False]
    # What stands behind its place is the next parameter, not the rest of this one.
    assert not torch.equal(beside, torch.full_like(beside, 7.0))
    assert torch.equal(places.copy.views[2], training.parameters[2].detach())


def test_parameters_without_a_ratio_are_missing(make: Callable[..., Training]) -> None:
    model = small()
    with torch.no_grad():
        model[0].bias.zero_()
    training = make(model, ratios_every=1)
    training.step(*batch())
    (update,) = training.updates
    assert update.missing.tolist() == [False, True, False, False]
    frame = metrics_frame(training)
    assert frame.parameter_columns[0].missing == np.packbits(update.missing).tobytes()
    assert frame.scalars["update_ratio"] == update.total


def metrics_frame(training: Training) -> Frame:
    """What the newest step becomes, with its update."""
    templates = {}
    for record in training.ring.records():
        template = training.ring.raw_template(record.payload) if record.kind == RAW else None
        templates |= {} if template is None else {read_raw(record.payload).template: template}
    *_, (encoded, taken) = metrics_of(training.ring.records(), templates)
    assert encoded is not None and len(taken) == 2
    frame = decode_record(encoded)
    assert isinstance(frame, Frame)
    return frame


def test_update_that_raises_leaves_no_record(make: Callable[..., Training]) -> None:
    training = make(small(), ratios_every=2)
    training.optimizer.zero_grad()
    training.backward(training.forward(batch()[0]), batch()[1])
    assert training.calls.before_step(training.optimizer, (training.optimizer,), {}) is True
    training.step(*batch())
    assert training.updates == []


def test_news_have_the_training_thread_look_once(make: Callable[..., Training]) -> None:
    training = make(small())
    for step in range(100, 110):
        training.state.news |= step in (102, 106)
        training.next_look_ns = 1 if step == 106 else 0
        training.step(*batch())
    assert training.looks == [102, 106, 107]
    assert len(training.records) == 10


def test_look_comes_again_at_its_time_though_there_are_no_news(make: Callable[..., Training]) -> None:
    training = make(small())
    for step in range(100, 110):
        training.state.news |= step == 102
        training.next_look_ns = time.monotonic_ns() + 3600 * 10**9 if step == 102 else 0
        if step == 106:
            assert training.state.news_at_ns > time.monotonic_ns()
            training.state.news_at_ns = time.monotonic_ns()
        training.step(*batch())
    assert training.looks == [102, 106]
    assert training.state.news_at_ns == 0


def test_steps_change_nothing(make: Callable[..., Training]) -> None:
    """The same training without the callbacks gives the same bits."""
    training, twin = make(small()), small()
    optimizer = torch.optim.SGD(twin.parameters(), lr=0.1)
    for _ in range(20):
        training.step(*batch())
        optimizer.zero_grad()
        inputs, targets = batch()
        F.cross_entropy(twin(inputs), targets).backward()
        optimizer.step()
    assert all(map(torch.equal, training.model.parameters(), twin.parameters()))
    assert training.state.steps == 20 and training.follower.told == []


def test_nothing_of_a_finished_step_is_kept_but_some_inputs(make: Callable[..., Training]) -> None:
    training = make(small())
    inputs, targets = batch()
    before = sys.getrefcount(inputs)
    output = training.forward(inputs)
    training.backward(output, targets)
    training.update()
    held = sys.getrefcount(output)
    assert (training.loop.forwards(IDLE), held) == ([], 2)
    assert training.calls.open_calls[0].loss is None
    training.loop.release()
    assert sys.getrefcount(inputs) == before


@pytest.mark.parametrize("count", [200])
def test_arming_again_and_again_leaves_no_reference(make: Callable[..., Training], count: int) -> None:
    training = make(small())
    inputs, targets = batch()
    watched = (training.model, training.optimizer, inputs, training.calls.receive(0), None, True)
    training.step(inputs, targets)
    gc.collect()
    before = [sys.getrefcount(one) for one in watched]
    for _ in range(count):
        training.loop.stop()
        training.loop.forget_step()
        training.loop.start(training.follower, 100, slow_at=NEVER, last_end_ns=0)
        training.step(inputs, targets)
        for record in [*training.ring.records()]:
            training.ring._numbers[4] = record.end  # taken
    after = [sys.getrefcount(one) for one in watched]
    # None and True come and go elsewhere too; what a step leaves behind would be 200.
    assert all(abs(now - then) <= count // 20 for now, then in zip(after, before, strict=True))


class Several(nn.Module):
    """Returns its loss, its scores and what is no tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = small()

    def forward(self, inputs: Tensor) -> dict[str, Any]:
        scores = self.inner(inputs)
        return {"loss": scores.square().mean(), "scores": scores, "name": "several"}


class OfContainer(nn.Module):
    """Is called with a list in a dictionary."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = small()

    def forward(self, given: dict[str, list[Tensor]]) -> Tensor:
        scores: Tensor = self.inner(given["x"][0])
        return scores


CYCLES: dict[str, tuple[Callable[[], nn.Module], dict[str, Any]]] = {
    "micro-steps": (small, {"micro_steps": 3}),
    "outputs": (Several, {"outputs": 2, "look_at_loss": lambda *given: (1.0, 1.0, NODE, given)}),
    "containers": (OfContainer, {}),
    "update places": (small, {"norms_every": 2, "ratios_every": 2}),
    "ranks": (
        small,
        {"is_distributed": True, "free_since_ns": 1, "scalars": lambda: (1.0,), "names": ("own",)},
    ),
}


@pytest.mark.parametrize("name", CYCLES)
def test_disarming_anywhere_in_a_step_leaves_no_reference(make: Callable[..., Training], name: str) -> None:
    count, (model, options) = 200, CYCLES[name]
    micro_steps = options.get("micro_steps", 1)
    marked_model = model()
    first = next(marked_model.parameters())
    training = make(marked_model, marked=MarkedParameter(first), **options)
    inputs, targets = batch()
    given: Any = {"x": [inputs]} if name == "containers" else inputs
    outputs: list[Any] = []

    def go_on_to(end: int) -> None:
        """Up to one of the calls of a step, after which C is disarmed."""
        training.optimizer.zero_grad()
        for at in range(micro_steps):
            outputs[:] = [training.forward(given)]
            if end == 2 * at:
                return
            result = outputs[0]["scores"] if isinstance(outputs[0], dict) else outputs[0]
            training.backward(result, targets)
            if end == 2 * at + 1:
                return
        assert training.update() is True

    def cycle(at: int) -> None:
        go_on_to(at % (2 * micro_steps + 1))
        outputs.clear()
        training.loop.stop()
        training.loop.forget_step()
        training.loop.start(training.follower, 100 + at, slow_at=NEVER, last_end_ns=0)
        for record in [*training.ring.records()]:
            training.ring._numbers[4] = record.end  # taken

    for at in range(20):
        cycle(at)
    gc.collect()
    watched = (
        training.model,
        training.optimizer,
        inputs,
        given,
        first,
        training.calls.receive(0),
        None,
        True,
    )
    before, objects = [sys.getrefcount(one) for one in watched], len(gc.get_objects())
    for at in range(count):
        cycle(at)
    gc.collect()
    after = [sys.getrefcount(one) for one in watched]
    # None and True come and go elsewhere too; what one kind of cycle leaves behind would be over fifty.
    assert all(abs(now - then) <= count // 20 for now, then in zip(after, before, strict=True))
    assert len(gc.get_objects()) - objects <= count // 20


REFUSED_AT_FORWARD: dict[str, Callable[[Training], tuple[tuple[Any, ...], dict[str, Any]]]] = {
    "a keyword": lambda training: ((batch()[0],), {"mask": None}),
    "two arguments": lambda training: ((batch()[0], 1), {}),
    "an argument with a gradient": lambda training: ((batch()[0].requires_grad_(),), {}),
    "a list of two": lambda training: (([batch()[0], batch()[0]],), {}),
    "a list in a list in a list": lambda training: (([[[batch()[0]]]],), {}),
    "a set": lambda training: (({1},), {}),
    "a sparse tensor": lambda training: ((batch()[0].to_sparse(),), {}),
    "a parameter": lambda training: ((nn.Parameter(torch.zeros(2)),), {}),
    "a large one": lambda training: ((torch.zeros(1 << 20),), {}),
}


@pytest.mark.parametrize("name", REFUSED_AT_FORWARD)
def test_other_arguments_are_refused_before_anything_is_done(
    make: Callable[..., Training], name: str
) -> None:
    training = make(small())
    args, kwargs = REFUSED_AT_FORWARD[name](training)
    counts = [sys.getrefcount(one) for one in args]
    assert training.calls.begin_forward(training.model, args, kwargs) is False
    assert (training.state.armed, training.state.state) == (0, IDLE)
    assert [sys.getrefcount(one) for one in args] == counts


def test_forward_elsewhere_is_not_followed_and_disarms_nothing(make: Callable[..., Training]) -> None:
    training, answers = make(small()), list[object]()
    call = (training.model, (batch()[0],), {})
    thread = threading.Thread(target=lambda: answers.append(training.calls.begin_forward(*call)))
    thread.start()
    thread.join()
    answers.append(training.calls.begin_forward(small(), (batch()[0],), {}))
    assert (answers, training.state.armed) == ([False, False], 1)


@pytest.mark.parametrize("change", ["eval", "no_grad", "inference", "autocast", "attention", "slow_at"])
def test_other_surroundings_are_refused(make: Callable[..., Training], change: str) -> None:
    training = make(small())
    call = (training.model, (batch()[0],), {})
    contexts = {
        "no_grad": torch.no_grad(),
        "inference": torch.inference_mode(),
        "autocast": torch.autocast("cpu"),
    }
    if change == "eval":
        training.model.eval()
    elif change == "attention":
        training.state.attention = 1
    elif change == "slow_at":
        training.state.slow_at = 100
    with contexts.get(change, torch.enable_grad()):
        assert training.calls.begin_forward(*call) is False
    assert training.state.armed == 0


def test_call_from_another_line_is_refused(make: Callable[..., Training]) -> None:
    here = sys._getframe().f_code
    training = make(small(), site=((here, 10**6),))
    assert training.calls.begin_forward(training.model, (batch()[0],), {}) is False
    assert training.state.armed == 0


def test_call_inside_the_forward_or_the_backward_passes(make: Callable[..., Training]) -> None:
    training = make(small())
    inputs, _ = batch()
    assert training.calls.begin_forward(training.model, (inputs,), {}) is True
    assert training.calls.begin_forward(training.model, (inputs,), {}) is None
    training.calls.end_forward(training.model(inputs))
    loss = F.cross_entropy(training.model(inputs), batch()[1])
    assert training.calls.begin_backward(loss, None) is True
    assert training.calls.begin_forward(training.model, (inputs,), {}) is None
    assert training.calls.begin_backward(loss, None) is None


@pytest.mark.parametrize("loss", ["nan", "inf", "another function", "gradients given", "two", "a vector"])
def test_other_losses_are_refused_before_anything_is_done(make: Callable[..., Training], loss: str) -> None:
    training = make(small())
    inputs, targets = batch()
    output = training.forward(inputs)
    usual = F.cross_entropy(output, targets)
    given: dict[str, tuple[Any, Any]] = {
        "nan": (F.cross_entropy(output * math.nan, targets), None),
        "inf": (F.cross_entropy(output * torch.tensor([math.inf, 0, 0]), targets), None),
        "another function": (output.mean(), None),
        "gradients given": (usual, torch.ones(())),
        "two": ([usual, usual], None),
        "a vector": (output, None),
    }
    assert training.calls.begin_backward(*given[loss]) is False
    (call,) = training.loop.forwards(AFTER_FORWARD)
    assert (training.state.armed, training.state.state, call.loss) == (0, AFTER_FORWARD, None)


def test_bad_gradient_is_refused_before_the_update(make: Callable[..., Training]) -> None:
    training = make(small())
    inputs, targets = batch()
    output = training.forward(inputs)
    output.register_hook(lambda gradient: gradient * math.nan)
    training.backward(output, targets)
    assert training.calls.before_step(training.optimizer, (training.optimizer,), {}) is False
    assert (training.state.armed, training.state.state, training.records) == (0, AFTER_BACKWARD, [])
    (call,) = training.loop.forwards(AFTER_BACKWARD)
    assert call.outputs[0].gradient is not None


@pytest.mark.parametrize("kind", ["sparse", "complex", "expanded"])
def test_gradient_that_cannot_be_read_by_pointer_is_refused(
    make: Callable[..., Training], kind: str, capfd: pytest.CaptureFixture[str]
) -> None:
    training = make(small())
    inputs, targets = batch()
    training.backward(training.forward(inputs), targets)
    weight = training.parameters[0]
    assert weight.grad is not None
    if kind == "sparse":
        weight.grad = weight.grad.to_sparse()
    elif kind == "expanded":
        weight.grad = torch.ones(1, 1).expand(6, 4)
    else:
        weight.data = weight.data.to(torch.complex64)
        weight.grad = None
        weight.grad = torch.zeros(6, 4, dtype=torch.complex64)
    assert training.calls.before_step(training.optimizer, (training.optimizer,), {}) is False
    assert capfd.readouterr().err == ""


def test_other_optimizers_pass_and_other_groups_are_refused(make: Callable[..., Training]) -> None:
    training = make(small())
    inputs, targets = batch()
    training.backward(training.forward(inputs), targets)
    other = torch.optim.SGD(small().parameters())
    assert training.calls.before_step(other, (other,), {}) is None
    training.optimizer.load_state_dict(training.optimizer.state_dict())
    assert training.calls.before_step(training.optimizer, (training.optimizer,), {}) is False


def test_hook_that_the_script_adds_is_its_outputs_alone(make: Callable[..., Training]) -> None:
    training, seen = make(small()), list[int]()
    inputs, targets = batch()
    output = training.forward(inputs)
    output.register_hook(lambda _: seen.append(1))
    training.backward(output, targets)
    training.update()
    training.step(inputs, targets)
    assert seen == [1]


def test_ring_that_is_full_sends_the_step_the_slow_way(make: Callable[..., Training]) -> None:
    training = make(small(), room=4096)
    inputs, targets = batch()
    while training.state.armed:
        training.optimizer.zero_grad()
        training.backward(training.forward(inputs), targets)
        training.update()
    counters = training.ring.counters
    assert (counters.dropped, counters.wanted) == (1, 1)
    assert counters.head - counters.tail <= counters.capacity


def test_ring_goes_round_and_every_record_is_intact(make: Callable[..., Training]) -> None:
    training, seen = make(small(), room=4096), list[int]()
    inputs, targets = batch()
    while training.ring.counters.head < 3 * training.ring.capacity:
        training.step(inputs, targets)
        for record in training.ring.records():
            seen.append(read_raw(record.payload).step)
            training.ring._numbers[4] = record.end  # taken
    assert seen == [*range(100, 100 + len(seen))]


def test_nothing_is_appended_while_python_appends(make: Callable[..., Training]) -> None:
    training = make(small())
    inputs, targets = batch()
    training.backward(training.forward(inputs), targets)
    training.ring._numbers[13] = 1
    assert training.calls.before_step(training.optimizer, (training.optimizer,), {}) is False
    assert training.ring.counters.head == 0


def test_micro_steps_are_added_up_in_one_record(make: Callable[..., Training]) -> None:
    training = make(small(), micro_steps=3)
    training.optimizer.zero_grad()
    losses = [training.backward(training.forward(batch(rows)[0]), batch(rows)[1]) for rows in (2, 3, 4)]
    assert training.update() is True
    raw = read_raw(training.records[0])
    assert (raw.samples, raw.loss, raw.loss_raw) == (9.0, sum(losses) / 3, sum(losses))


@pytest.mark.parametrize(
    ("divisors", "accumulation", "factor"),
    [
        ((2.0, 2.0), math.nan, 2.0),
        ((2.0000001, 2.0000001), math.nan, 2.0000001),
        ((2.0, math.nan), 2.0, 1.0),
        ((4.0, 4.0), math.nan, 1.0),
        ((4.0, 4.0), 4.0, 4.0),
        ((2.0, 4.0), 4.0, 1.0),
    ],
)
def test_divisor_of_the_losses_is_undone_where_it_is_one_of_accumulation(
    make: Callable[..., Training], divisors: tuple[float, ...], accumulation: float, factor: float
) -> None:
    left = [*divisors]
    training = make(small(), micro_steps=2, look_at_loss=lambda *given: (left.pop(0), math.nan, NODE))
    training.state.accumulation = accumulation
    training.optimizer.zero_grad()
    losses = [training.backward(training.forward(batch()[0]), batch()[1]) for _ in divisors]
    assert training.update() is True
    raw = read_raw(training.records[0])
    assert (raw.loss, raw.loss_raw) == (sum(losses) * factor / 2, sum(losses))


def test_update_after_too_few_micro_steps_is_refused(make: Callable[..., Training]) -> None:
    training = make(small(), micro_steps=2)
    training.backward(training.forward(batch()[0]), batch()[1])
    assert training.calls.before_step(training.optimizer, (training.optimizer,), {}) is False
    (call,) = training.loop.forwards(AFTER_BACKWARD)
    assert call.loss is not None and call.outputs[0].gradient is not None


def test_gradients_cleared_between_micro_steps_are_noticed(make: Callable[..., Training]) -> None:
    training = make(small(), micro_steps=2)
    training.backward(training.forward(batch()[0]), batch()[1])
    output = training.forward(batch()[0])
    for set_to_none in (False, True):
        training.state.armed = 1
        training.optimizer.zero_grad(set_to_none=set_to_none)
        assert training.calls.begin_backward(F.cross_entropy(output, batch()[1]), None) is False


def test_gradient_of_an_earlier_micro_step_has_the_step_taken_over(make: Callable[..., Training]) -> None:
    received: list[tuple[int, Tensor]] = []

    def take_over() -> None:
        training.loop.stop()
        sinks = [[lambda gradient, at=at: received.append((at, gradient))] for at in range(2)]
        training.loop.send_gradients_to(sinks)

    training = make(small(), micro_steps=2, take_over=take_over)
    first = training.forward(batch()[0])
    loss = F.cross_entropy(first, batch()[1])
    assert training.calls.begin_backward(loss, None) is True
    loss.backward(retain_graph=True)
    assert training.calls.end_backward() is True
    second = training.forward(batch()[0])
    loss = F.cross_entropy(second + first, batch()[1])
    assert training.calls.begin_backward(loss, None) is True
    loss.backward()
    assert training.calls.end_backward() is False
    assert [at for at, _ in received] == [0]


def test_time_of_every_callback_of_a_step_counts_as_the_probes_own(make: Callable[..., Training]) -> None:
    training, spent = make(small()), [0]
    loss = F.cross_entropy(training.forward(batch()[0]), batch()[1])
    spent.append(training.state.step_own_ns)
    assert training.calls.begin_backward(loss, None) is True
    spent.append(training.state.step_own_ns)
    loss.backward()
    assert training.calls.end_backward() is True
    spent.append(training.state.step_own_ns)
    assert training.update() is True
    spent.append(training.state.own_ns)
    assert spent == sorted(set(spent))


def test_every_output_is_held_and_hooked(make: Callable[..., Training]) -> None:
    training = make(Several(), outputs=2)
    result: Any = training.forward(batch()[0])
    training.backward(result["scores"], batch()[1])
    (call,) = training.loop.forwards(AFTER_BACKWARD)
    assert [output.gradient is not None for output in call.outputs] == [False, True]
    assert [output.is_droppable for output in call.outputs] == [False, True]
    is_held = call.outputs[1].held is result["scores"]
    assert is_held and training.update() is True
    del call
    plain = training.model(batch()[0])
    held, expected = sys.getrefcount(result["scores"]), sys.getrefcount(plain["scores"])
    assert held == expected


def test_other_number_of_outputs_is_refused(make: Callable[..., Training]) -> None:
    training = make(Several(), outputs=1)
    assert training.calls.begin_forward(training.model, (batch()[0],), {}) is True
    result = training.model(batch()[0])
    assert training.calls.end_forward(result) is False
    assert result["scores"]._backward_hooks is None


def test_containers_are_copied(make: Callable[..., Training]) -> None:
    training = make(small())
    inputs, _ = batch()
    given: Any = ({"x": [inputs, 1, None], "y": ("text", 2)},)
    before = sys.getrefcount(inputs)
    assert training.calls.begin_forward(training.model, given, {}) is True
    given[0]["x"].clear()
    given[0].clear()
    (call,) = training.loop.forwards(IN_FORWARD)
    assert call.args[0]["x"][0] is inputs and call.args[0]["y"] == ("text", 2)
    assert (call.samples, call.versions[0]) == (5, inputs._version)
    del call, given
    training.loop.release()
    assert sys.getrefcount(inputs) == before - 1


def test_unfrozen_parameter_sends_the_step_the_slow_way(make: Callable[..., Training]) -> None:
    frozen = [nn.Parameter(torch.zeros(1), requires_grad=False) for _ in range(70)]
    training = make(small(), frozen=frozen)
    training.step(*batch())
    frozen[3].requires_grad_(True)
    training.backward(training.forward(batch()[0]), batch()[1])
    answers = []
    for _ in range(2):
        training.state.armed = 1
        answers.append(training.calls.before_step(training.optimizer, (training.optimizer,), {}))
    assert False in answers


def test_parameter_added_to_a_group_sends_the_step_the_slow_way(make: Callable[..., Training]) -> None:
    training = make(small())
    training.backward(training.forward(batch()[0]), batch()[1])
    training.optimizer.param_groups[0]["params"].append(nn.Parameter(torch.zeros(1)))
    assert training.calls.before_step(training.optimizer, (training.optimizer,), {}) is False


def scaled_training(make: Callable[..., Training]) -> tuple[Training, torch.amp.GradScaler]:
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    return make(small(), scaler=scaler, scalars=lambda: (4.0,), scalar_count=1, names=["amp_scale"]), scaler


def test_loss_before_it_was_scaled_is_recorded_with_the_scale(make: Callable[..., Training]) -> None:
    training, scaler = scaled_training(make)
    loss = F.cross_entropy(training.forward(batch()[0]), batch()[1])
    scaled: Any = scaler.scale(loss)
    assert training.calls.after_scale(loss, scaled) is True
    # The last node is another than was learned here: that is seen after the values were read.
    assert training.calls.begin_backward(scaled, None) is False
    place = training.calls.open_calls[0]
    assert (place.raw, place.value) == (scaled.item(), loss.item())
    held = training.loop.scaling
    assert held is not None and held[0] is loss and held[1] is scaled
    assert training.calls.after_scaler_step(scaler, training.optimizer) is False


def test_scale_without_a_known_scaler_is_refused(make: Callable[..., Training]) -> None:
    training = make(small())
    loss = F.cross_entropy(training.forward(batch()[0]), batch()[1])
    assert training.calls.after_scale(loss, loss) is True
    assert training.calls.after_scale(loss, loss * 2) is False


def test_what_python_reads_is_a_part_of_the_record(make: Callable[..., Training]) -> None:
    training, scaler = scaled_training(make)
    training.step(*batch())
    assert training.calls.after_scaler_step(scaler, training.optimizer) is True
    (payload,) = training.records
    template = training.ring.raw_template(memoryview(payload))
    assert template is not None and frame_of(template, read_raw(payload)).scalars["amp_scale"] == 4.0


@pytest.mark.parametrize("what", ["raises", "no tuple"])
def test_loss_that_python_cannot_read_is_refused(make: Callable[..., Training], what: str) -> None:
    def look(*given: Any) -> Any:
        if what == "raises":
            raise ValueError(what)
        return None

    training = make(small(), look_at_loss=look)
    output = training.forward(batch()[0])
    assert training.calls.begin_backward(F.cross_entropy(output, batch()[1]), None) is False


def test_scalars_that_python_cannot_read_refuse_the_step(make: Callable[..., Training]) -> None:
    training = make(small(), scalars=lambda: (1.0,), scalar_count=2, names=["a", "b"])
    training.backward(training.forward(batch()[0]), batch()[1])
    assert training.calls.before_step(training.optimizer, (training.optimizer,), {}) is False
    assert training.records == []


def test_structures_mirror_those_of_the_kernel() -> None:
    calls = hot_binding.status().calls
    assert calls is not None and calls.state.armed in (0, 1)


SANITIZED = """
import sys
from pathlib import Path
import pytest
from probe.measure.kernels import binding
binding.LIBRARY = Path(sys.argv[1])
chosen = ["-k", "not sanitizer and not compiled and not warnings"]
plain = ["--assert=plain", "-p", "no:cacheprovider"]
sys.exit(pytest.main(["-q", "-x", *plain, *sys.argv[2:], *chosen]))
"""


def library_of_compiler(name: str) -> str:
    """Path of a library that comes with the compiler; its bare name where it does not."""
    command = [*(compile.find_compiler() or ["cc"]), f"-print-file-name={name}"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_callbacks_run_clean_under_the_sanitizers(tmp_path: Path) -> None:
    # The second one because torch throws exceptions, which the sanitizer follows.
    files = [__file__, str(Path(__file__).parents[1] / "attach/test_kernel_step.py")]
    runtime, standard = library_of_compiler("libasan.so"), library_of_compiler("libstdc++.so")
    if compile.find_compiler() is None or not Path(runtime).is_absolute():
        pytest.skip("no address sanitizer here: apt-get install gcc")
    library = tmp_path / compile.LIBRARY_NAME
    options = ["-fsanitize=address,undefined", "-fno-sanitize-recover=undefined", "-O0", "-g"]
    assert compile.compile_kernel(library, extra=options) is None
    environment = os.environ | {
        "LD_PRELOAD": f"{runtime} {standard}",
        # One line of each allocation: Python makes millions of them.
        "ASAN_OPTIONS": "detect_leaks=0:malloc_context_size=1",
        "PYTHONMALLOC": "malloc",
        "OMP_NUM_THREADS": "1",
    }
    finished = subprocess.run(
        [sys.executable, "-c", SANITIZED, str(library), *files],
        env=environment,
        capture_output=True,
        text=True,
        timeout=380,
        cwd=Path(__file__).parents[3],
        check=False,
    )
    assert finished.returncode == 0, finished.stdout[-2000:] + finished.stderr[-4000:]


def test_sources_have_no_warnings(tmp_path: Path) -> None:
    if compile.find_compiler() is None:
        pytest.skip("no C compiler: apt-get install gcc libc6-dev")
    # The compiler follows values from the first level of optimisation on; the third takes it 6 s.
    options = ["-Wall", "-Wextra", "-Wno-psabi", "-Werror", "-O1"]
    assert compile.compile_kernel(tmp_path / compile.LIBRARY_NAME, extra=options) is None
