"""Module calls that the kernel follows: the same numbers as Python's, and nothing left behind."""

from __future__ import annotations

import gc
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
import torch
from observed_steps import Watched, hooked_outputs, seeded
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from probe.attach.observation.kernel_step import KernelStep
from probe.attach.observation.module_statistics import ModuleStatistics
from probe.attach.observation.observed_step import ObservedStep
from probe.loop.reach_look import ReachLook
from probe.measure.kernels import call_binding
from probe.wire.module_frames import pack_module_columns

pytestmark = pytest.mark.skipif(call_binding.functions() is None, reason="no kernel here")
DUE = ("activations",)


class Twice(nn.Module):
    """Calls one module twice, hands another's output on, and overwrites it."""

    def __init__(self) -> None:
        super().__init__()
        self.shared, self.bend, self.out = nn.Linear(6, 6), nn.ReLU(inplace=True), nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.bend(self.shared(self.shared(x))))


class Returning(nn.Module):
    """Returns what a function makes of its input."""

    def __init__(self, function: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Any:
        return self.function(x)


class Odd(nn.Module):
    """One module for each kind of output; what they return is not used."""

    KINDS: tuple[Callable[[Tensor], Any], ...] = (
        lambda x: (x, x + 1),
        lambda x: {"loss": x.sum(), "logits": x * 2},
        lambda x: x.argmax(1),
        lambda x: None,
        lambda x: x.new_zeros(0, 3),
        lambda x: x.sum(),
        lambda x: torch.zeros((), dtype=x.dtype),
        lambda x: torch.complex(x, x),
        lambda x: torch.complex(x, x).conj().imag,
        lambda x: x.t().relu(),
        lambda x: x.relu()[:, ::2],
        lambda x: nn.Parameter(x.detach()),
        lambda x: x.detach().to_sparse(),
        lambda x: torch.zeros_like(x),
        lambda x: (x * 1e30).square(),
        lambda x: x / 0,
        lambda x: torch.full_like(x, torch.finfo(x.dtype).max * 0.7),
        lambda x: torch.func.vmap(lambda row: row.relu())(x),
        lambda x: x.relu().expand(2, *x.shape),
        lambda x: torch.empty(2, 3, device="meta"),
    )

    def __init__(self) -> None:
        super().__init__()
        self.kinds = nn.ModuleList(map(Returning, self.KINDS))
        self.bends = nn.ModuleList([nn.Tanh(), nn.Sigmoid(), nn.ReLU6(), nn.Hardtanh(-0.1, 0.1)])
        self.linear = nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        for module in (*self.kinds, *self.bends):
            module(x)
        torch.func.vmap(self.kinds[0])(x)
        return self.linear(x)


class Raising(nn.Module):
    """A call inside raises, and the forward goes on."""

    def __init__(self) -> None:
        super().__init__()
        self.fails = nn.Sequential(nn.Linear(6, 6), nn.Linear(5, 6))
        self.linear = nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        with suppress(RuntimeError):
            self.fails(x)
        return self.linear(x)


class Recomputing(nn.Module):
    """Its inner modules are called again in the backward."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(6, 6), nn.GELU())

    def forward(self, x: Tensor) -> Any:
        return checkpoint(self.inner, x, use_reentrant=False)


class Images(nn.Module):
    """Channels behind the first dimension, in both orders in memory."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.bend = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        x = x.view(-1, 1, 1, 6).expand(-1, 3, 6, 6)
        flat = self.bend(self.norm(self.first(x)))
        last = self.bend(self.norm(self.first(x.to(memory_format=torch.channels_last))))
        return flat.sum() + last.sum() + self.bend(torch.zeros_like(last)).sum()


class Recurrent(nn.Module):
    """Tuples of tensors, and units of which some are never reached."""

    def __init__(self) -> None:
        super().__init__()
        self.names, self.layer, self.large = nn.Embedding(9, 6), nn.LSTM(6, 5), nn.Embedding(2, 70_000)

    def forward(self, x: Tensor) -> Tensor:
        index = torch.arange(4).view(2, 2)
        return self.layer(self.names(index))[0].sum() + self.large(index % 2).sum() + x.sum()


def compiled_inside() -> nn.Module:
    model = nn.Sequential(nn.Sequential(nn.Linear(6, 6), nn.ReLU()), nn.Linear(6, 6))
    model[0].compile(backend="eager")
    return model


MODELS: dict[str, Callable[[], nn.Module]] = {
    "containers": lambda: nn.Sequential(
        nn.Sequential(nn.Linear(6, 4)), nn.Sequential(nn.Sequential(nn.ReLU()))
    ),
    "twice": Twice,
    "odd outputs": Odd,
    "raising": Raising,
    "recomputing": Recomputing,
    "images": Images,
    "compiled inside": compiled_inside,
    "recurrent": Recurrent,
    "double": lambda: nn.Sequential(nn.Linear(6, 6), nn.Tanh()).double(),
    "bfloat16": lambda: nn.Sequential(nn.Linear(6, 6), nn.ReLU()).bfloat16(),
    "half": lambda: nn.Sequential(nn.Linear(6, 6), nn.ReLU()).half(),
}


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    """A step that a test leaves open would keep the kernel from the next one."""
    yield
    gc.collect()


def observe(make: Callable[[], nn.Module], *, steps: int = 4, micro_steps: int = 2) -> list[ModuleStatistics]:
    """Some steps of so many micro-steps each, with dead units told after two."""
    model = seeded(make)
    dtype = next(model.parameters()).dtype
    watched, found = Watched(model, dead_after=2), []
    for step in range(steps):
        for part in range(micro_steps):
            data = torch.randn(4, 6, generator=torch.Generator().manual_seed(10 * step + part)).to(dtype)
            output = watched.forward(data, due=DUE)
            output.float().square().sum().backward()
            watched.observer.end_backward()
        found.append(watched.collect())
    return found


@pytest.mark.parametrize(("steps", "micro_steps"), [(4, 2), (12, 1)], ids=["two calls", "one call"])
@pytest.mark.parametrize("make", MODELS.values(), ids=MODELS.keys())
def test_kernel_and_python_say_the_same(
    make: Callable[[], nn.Module], steps: int, micro_steps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    by_kernel = observe(make, steps=steps, micro_steps=micro_steps)
    monkeypatch.setattr(KernelStep, "begin", lambda *_, **__: None)
    by_python = observe(make, steps=steps, micro_steps=micro_steps)
    for kernel, python in zip(by_kernel, by_python, strict=True):
        assert kernel.modules == python.modules
        assert kernel.columns.keys() == python.columns.keys()
        for name, column in kernel.columns.items():
            np.testing.assert_array_equal(kernel.missing[name], python.missing[name], err_msg=name)
            np.testing.assert_allclose(column, python.columns[name], rtol=1e-12, err_msg=name)
        np.testing.assert_array_equal(kernel.states, python.states)
        assert kernel.packed() == pack_module_columns(kernel.columns, kernel.missing)


@pytest.mark.parametrize(
    "make", [MODELS["containers"], MODELS["half"], Raising], ids=["plain", "half", "raising"]
)
def test_columns_of_usual_steps_are_made_by_the_kernel(make: Callable[[], nn.Module]) -> None:
    assert all(found.made is not None for found in observe(make, micro_steps=1))


def test_dead_units_are_told_of_modules_whose_units_come_and_go() -> None:
    """Against a count of our own: of each unit the steps since it gave anything but zeros."""
    model = nn.Sequential(nn.ReLU(), nn.Sequential(nn.ReLU()))
    watched = Watched(model, dead_after=2)
    generator = np.random.default_rng(0)
    idle, told = np.zeros(4, dtype=int), []
    for step in range(200):
        active = generator.random(4) < (1.0 if step % 20 < 5 else 0.8)
        idle = np.where(active, 0, idle + 1)
        given = torch.tensor(np.where(active, 1.0, -1.0)).repeat(2, 1).requires_grad_()
        found = watched.step(given, due=DUE)
        wanted = None if step < 1 else int((idle >= 2).sum())
        assert [found.value("dead_units", name) for name in ("0", "1", "1.0", "")] == [wanted] * 4
        assert found.packed() == pack_module_columns(found.columns, found.missing)
        told.append(wanted)
    assert {0, 1} < set(told)


def test_numbers_are_those_of_plain_hooks() -> None:
    model = seeded(Twice)
    data = torch.randn(5, 6)
    outputs = hooked_outputs(model, lambda: model(data))
    watched = Watched(model)
    watched.forward(data, due=DUE).sum().backward()
    assert watched.observer.callbacks is not None
    found = watched.collect()
    for name, values in outputs.items():
        every = torch.cat([value.reshape(-1) for value in values])
        assert found.value("activation_rms", name) == pytest.approx(
            float(every.square().mean().sqrt()), rel=1e-6
        )
        assert found.value("calls", name) == len(values)


@pytest.mark.parametrize("due", ["module_times", "activation_gradients", "histograms", "module_calls"])
def test_what_needs_more_than_outputs_is_left_to_python(due: str) -> None:
    watched = Watched(seeded(Twice))
    watched.forward(torch.ones(2, 6), due=(*DUE, due))
    assert watched.observer.callbacks is None


def test_a_second_model_is_observed_while_a_step_of_the_first_is_open() -> None:
    first, second = Watched(seeded(Twice)), Watched(seeded(Twice))
    first.forward(torch.ones(2, 6), due=DUE)
    second.forward(torch.ones(2, 6), due=DUE)
    assert second.observer.callbacks is None
    assert second.collect().value("calls", "shared") == first.collect().value("calls", "shared") == 2
    second.forward(torch.ones(2, 6), due=DUE)
    assert second.observer.callbacks is not None


def test_an_observer_that_is_forgotten_in_the_middle_of_a_step_leaves_the_kernel_free() -> None:
    watched = Watched(seeded(Twice))
    watched.forward(torch.ones(2, 6), due=DUE)
    gone = weakref.ref(watched.observer)
    del watched
    gc.collect()
    assert gone() is None
    following = Watched(seeded(Twice))
    following.forward(torch.ones(2, 6), due=DUE)
    assert following.observer.callbacks is not None


def test_calls_of_a_step_that_is_over_are_told_to_nobody() -> None:
    watched = Watched(seeded(Twice))
    watched.forward(torch.ones(2, 6), due=DUE)
    functions = watched.observer.callbacks
    assert functions is not None
    token = functions.token_of(0)
    watched.collect()
    functions.leave(token, torch.ones(3))
    functions.abandon(token)
    assert functions.enter(watched.model, (), {}) is None
    assert not functions.noted().outputs["elements"].tolist() or functions.state.unusual is None


def test_calls_on_other_threads_are_not_the_steps() -> None:
    model = seeded(Twice)
    watched = Watched(model)
    other = threading.Thread(target=lambda: model.shared(torch.ones(1, 6)))

    def call_elsewhere(*_: Any) -> None:
        other.start()
        other.join()

    model.bend.register_forward_hook(call_elsewhere)
    assert watched.step(torch.ones(2, 6), due=DUE).value("calls", "shared") == 2


def test_a_module_that_is_new_is_known_in_the_next_step() -> None:
    model = seeded(lambda: nn.Sequential(nn.Linear(6, 6)))
    watched = Watched(model)
    watched.step(torch.ones(2, 6), due=DUE)
    model.append(nn.ReLU())
    assert len(watched.step(torch.ones(2, 6), due=DUE).modules) == 2
    assert watched.step(torch.ones(2, 6), due=DUE).value("calls", "1") == 1


def test_what_another_observer_follows_too_is_noted_all_the_same() -> None:
    model = seeded(Twice)
    watched = Watched(model)
    names = {id(module): name for name, module in model.named_modules()}
    look = ReachLook(model, {}, names, guard=watched.guard)
    watched.observer.begin_forward(DUE, model, (torch.ones(2, 6),), {})
    look.begin(model, (torch.ones(2, 6),), {})
    output = model(torch.ones(2, 6))
    look.end(output)
    watched.observer.end_forward(output)
    assert watched.collect().value("calls", "shared") == 2


def test_nothing_is_kept_of_what_was_returned() -> None:
    kept: list[weakref.ref[Tensor]] = []
    model = seeded(lambda: nn.Sequential(nn.Linear(6, 6), Returning(lambda x: x.detach().clone())))
    model[1].register_forward_hook(lambda module, args, output: kept.append(weakref.ref(output)))
    watched = Watched(model)
    model.register_forward_hook(lambda module, args, output: torch.zeros(1, requires_grad=True))
    watched.forward(torch.ones(2, 6), due=DUE)
    assert [each() for each in kept] == [None]
    before = sys.getrefcount(None)
    for _ in range(20):
        watched.step(torch.ones(2, 6), due=DUE)
    assert abs(sys.getrefcount(None) - before) < 200


def test_time_of_the_callbacks_is_the_probes() -> None:
    watched = Watched(seeded(Twice))
    watched.forward(torch.ones(2, 6), due=DUE)
    functions = watched.observer.callbacks
    assert functions is not None
    assert watched.guard.spent_ns > 0
    assert functions.state.own_ns == 0


@pytest.mark.parametrize("due", [DUE, (*DUE, "activation_gradients")], ids=["kernel", "python"])
def test_observed_step_goes_with_its_graph(due: tuple[str, ...]) -> None:
    """In a cycle it would stay with all its records until Python's collector comes, which is seldom."""
    watched = Watched(seeded(MODELS["containers"]))
    kinds = (KernelStep, ObservedStep)
    gc.collect()
    gc.disable()
    try:
        for _ in range(3):
            watched.step(torch.randn(4, 6), due=due)
        watched.observer.begin_forward(DUE, watched.model, (), {})
        watched.observer.end_forward(raised=True)
        left = [each for each in gc.get_objects() if isinstance(each, kinds)]
    finally:
        gc.enable()
    assert len(left) <= 1
