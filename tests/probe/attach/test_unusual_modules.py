"""Modules that are not plain: TorchScript, lazy layers, attributes that raise."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from journals import Journal, read_journal
from torch import Tensor, nn

import probe
from probe.attach import root_calls

pytestmark = pytest.mark.filterwarnings(
    "ignore:`torch.jit:DeprecationWarning", "ignore::torch.jit.TracerWarning"
)


def layers() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))


class Parts(nn.Module):
    """A part of any kind, and a plain head."""

    def __init__(self, part: Any) -> None:
        super().__init__()
        self.part, self.head = part, nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.part(x))


class Raising(nn.Module):
    """Whoever asks for what it has not gets an error of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = layers()

    def __getattr__(self, name: str) -> Any:
        found = {**self.__dict__["_modules"], **self.__dict__["_parameters"]}
        if name not in found:
            raise RuntimeError(f"not connected: {name}")
        return found[name]

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x)


class Forward:
    """Stands for a module's forward, and answers no question."""

    def __init__(self, inner: nn.Module) -> None:
        self.inner = inner

    def __call__(self, x: Tensor) -> Tensor:
        return self.inner(x)

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(f"not connected: {name}")


class Redirected(nn.Module):
    """Its forward is an object."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = layers()
        self.forward = Forward(self.inner)


def traced() -> nn.Module:
    return torch.jit.trace(layers(), torch.randn(5, 4), check_trace=False)


def half_lazy() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.LazyLinear(3))


def train(model: nn.Module, steps: int) -> list[Tensor]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    generator = torch.Generator().manual_seed(1)
    for _ in range(steps):
        x = torch.randn(6, 4, generator=generator)
        loss = nn.functional.cross_entropy(model(x), x[:, :3].argmax(1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return [parameter.detach().clone() for parameter in model.parameters()]


def recorded(make: Callable[[], nn.Module], spool: Path, steps: int) -> Journal:
    """Train with and without a session: the results are the same."""
    torch.manual_seed(0)
    bare = train(make(), steps)
    torch.manual_seed(0)
    model = make()
    with probe.watch(model, run="run", level="advanced"):
        watched = train(model, steps)
    assert all(map(torch.equal, bare, watched))
    return read_journal(spool / "run")


KINDS: list[tuple[str, Callable[[], nn.Module], list[str]]] = [
    ("scripted", lambda: torch.jit.script(layers()), ["0", "1", "3"]),
    ("traced", traced, ["0", "1", "3"]),
    ("scripted part", lambda: Parts(torch.jit.script(layers())), ["part.0", "part.1", "part.3", "head"]),
    ("raising", Raising, ["inner.0", "inner.1", "inner.3"]),
    ("raising part", lambda: Parts(Raising()), ["part.inner.0", "part.inner.1", "part.inner.3", "head"]),
    ("redirected", Redirected, ["inner.0", "inner.1", "inner.3"]),
]


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize(("make", "names"), [kind[1:] for kind in KINDS], ids=[kind[0] for kind in KINDS])
def test_unusual_module_is_recorded_and_computes_the_same(
    make: Callable[[], nn.Module],
    names: list[str],
    spool: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    journal = recorded(make, spool, 12)
    assert [frame.step for frame in journal.frames] == list(range(12))
    assert [layer.name for layer in journal.layouts[-1].layers] == names
    assert not caplog.records


@pytest.mark.usefixtures("one_thread", "nothing_switched_off")
def test_scripted_part_is_taken_as_one_module_and_the_others_are_observed(spool: Path) -> None:
    journal = recorded(lambda: Parts(torch.jit.script(layers())), spool, 12)
    observed = {name for frame in journal.frames for name in frame.scalars}
    modules = [module.name for layout in journal.layouts for module in layout.modules]
    assert modules and set(modules) == {"", "part", "head"}
    assert observed


@pytest.mark.usefixtures("nothing_switched_off")
def test_half_lazy_model_is_recorded_and_its_lazy_layer_comes_later(spool: Path) -> None:
    journal = recorded(half_lazy, spool, 40)
    assert [layer.name for layer in journal.layouts[0].layers] == ["0"]
    assert [layer.name for layer in journal.layouts[-1].layers] == ["0", "2"]


def test_model_of_lazy_layers_alone_is_refused_with_the_reason() -> None:
    with pytest.raises(ValueError, match=r"lazy parameters only, such as `0\.weight`"):
        probe.watch(nn.Sequential(nn.LazyLinear(3)))


def test_attaching_that_fails_is_said_in_one_sentence_and_the_training_goes_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Broken(nn.Linear):
        def named_parameters(self, *_: Any, **__: Any) -> Any:
            raise RuntimeError("not connected")

    model = Broken(4, 3)
    run = probe.watch(model)
    assert not run.active
    (record,) = caplog.records
    said = "this run is not recorded: attaching to `Broken` failed (RuntimeError: not connected)"
    assert record.getMessage() == f"nanscope: {said}" and record.exc_info is None
    assert root_calls.root_calls.is_idle
