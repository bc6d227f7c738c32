"""Compiling a model whose calls are listened to gives the same graphs, with no recompilation, as without."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._C._dynamo.eval_frame import reset_code
from torch._dynamo.convert_frame import ConvertFrame
from torch._dynamo.testing import CompileCounter
from torch._dynamo.utils import counters

from probe.attach.root_calls import RootCalls, root_calls

PLAIN_CALL = nn.Module.__dict__["__call__"]


class Listener:
    """Runs what it is told of."""

    def call_root(self, call: Callable[..., Any], root: nn.Module, args: Any, kwargs: Any) -> Any:
        return call(root, *args, **kwargs)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
        self.head = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x))


@pytest.fixture
def calls() -> Iterator[RootCalls]:
    # What a collection runs within a forward (a callback of Hypothesis', the end of another test's object)
    # is compiled, too.
    gc.disable()
    yield root_calls
    gc.enable()
    for watch in root_calls._watches:
        root_calls.remove(watch.key)
    assert nn.Module.__dict__["__call__"] is PLAIN_CALL


def x() -> Tensor:
    return torch.ones(3, 4)


def test_class_wrapped_while_every_call_is_looked_at_compiles_to_torchs_own(calls: RootCalls) -> None:
    model = Net()
    calls.add(model, Listener())
    model.head(x())
    assert nn.Linear.__call__.__globals__["original"] is PLAIN_CALL


def test_dynamo_takes_what_stands_there_for_torchs_own(calls: RootCalls) -> None:
    key = calls.add(Net(), Listener())
    assert torch._dynamo.utils.unpatched_nn_module_call is nn.Module.__call__ is not PLAIN_CALL
    calls.remove(key)
    assert torch._dynamo.utils.unpatched_nn_module_call is PLAIN_CALL


class Broken(Net):
    """Gives up compiling in the middle."""

    def forward(self, x: Tensor) -> Tensor:
        x = self.body(x)
        torch._dynamo.graph_break()
        return self.head(x)


def as_model(model: Net, backend: Any) -> Callable[[Tensor], Tensor]:
    return torch.compile(model, backend=backend)


def in_place(model: Net, backend: Any) -> Callable[[Tensor], Tensor]:
    model.compile(backend=backend)
    return model


def as_function(model: Net, backend: Any) -> Callable[[Tensor], Tensor]:
    return torch.compile(lambda x: model(2 * x).sum(), backend=backend)


def a_part(model: Net, backend: Any) -> Callable[[Tensor], Tensor]:
    model.body.compile(backend=backend)
    return lambda x: model.head(model.body(x))


@contextlib.contextmanager
def asked(names: list[str]) -> Iterator[None]:
    """Note which functions dynamo is asked to compile, whether it then does or not."""
    plain = ConvertFrame.__call__

    def ask(self: ConvertFrame, frame: Any, *args: Any, **kwargs: Any) -> Any:
        names.append(f"{frame.f_code.co_filename.rpartition('/')[2]}:{frame.f_code.co_qualname}")
        return plain(self, frame, *args, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ConvertFrame, "__call__", ask)
        yield


def compiled(model: Net, compile_it: Callable[..., Callable[..., Tensor]], attach_at: int | None) -> Any:
    """What dynamo made of twelve steps: frames, ops, functions it was asked for, breaks, recompilations."""
    torch._dynamo.reset()
    counters.clear()
    counter, key = CompileCounter(), None
    functions: list[str] = []
    run = compile_it(model, counter) if attach_at != -1 else None
    for step in range(12):
        if attach_at == max(step, -1) or (attach_at == -1 and step == 0):
            key = root_calls.add(model, Listener())
        run = compile_it(model, counter) if run is None else run
        with asked(functions):
            run(x()).sum().backward()
        if key is not None:
            root_calls.note_step(key)
    if key is not None:
        root_calls.remove(key)
    frames, breaks = dict(counters["frames"]), sum(counters["graph_break"].values())
    return counter.frame_count, counter.op_count, frames, functions, breaks, dict(counters["recompiles"])


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")
@pytest.mark.parametrize("compile_it", [as_model, in_place, as_function, a_part])
@pytest.mark.parametrize("kind", [Net, Broken])
def test_compiling_makes_the_same_graphs_as_without(
    calls: RootCalls, kind: type[Net], compile_it: Callable[..., Callable[..., Tensor]]
) -> None:
    expected = compiled(kind(), compile_it, None)
    assert compiled(kind(), compile_it, -1) == expected
    assert compiled(kind(), compile_it, 4) == expected


@pytest.mark.parametrize("compile_it", [as_model, a_part])
def test_dispatch_is_left_alone_though_dynamo_has_forgotten_that(
    calls: RootCalls, compile_it: Callable[..., Callable[..., Tensor]]
) -> None:
    expected = compiled(Net(), compile_it, None)
    reset_code(RootCalls.dispatch.__code__)
    assert compiled(Net(), compile_it, -1) == expected
