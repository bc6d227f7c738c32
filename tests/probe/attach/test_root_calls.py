"""Which calls of which modules a listener is told of, and that nothing else notices."""

from __future__ import annotations

import copy
import io
import threading
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from probe.attach.call_wrappers import function_in_torch, is_own_frame
from probe.attach.root_calls import RootCalls, root_calls

PLAIN_CALL = nn.Module.__dict__["__call__"]


class Listener:
    """Notes the roots that it is told of."""

    def __init__(self) -> None:
        self.roots: list[nn.Module] = []

    def call_root(self, call: Callable[..., Any], root: nn.Module, args: Any, kwargs: Any) -> Any:
        self.roots.append(root)
        return call(root, *args, **kwargs)

    def names_in(self, model: nn.Module) -> list[str]:
        names = {id(module): name for name, module in model.named_modules()}
        return [names.get(id(root), type(root).__name__) for root in self.roots]


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
        self.head = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x))


class Around(nn.Module):
    """Has the model inside, with its loss."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.inner = model

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x).sum()


@pytest.fixture
def calls() -> Iterator[RootCalls]:
    yield root_calls
    for watch in root_calls._watches:
        root_calls.remove(watch.key)
    assert nn.Module.__dict__["__call__"] is PLAIN_CALL


def x() -> Tensor:
    return torch.ones(3, 4)


def settle(calls: RootCalls, *keys: int) -> None:
    for _ in range(2):
        for key in keys:
            calls.note_step(key)
    assert nn.Module.__dict__["__call__"] is PLAIN_CALL


def test_parts_called_by_the_script_are_roots_before_and_after_settling(calls: RootCalls) -> None:
    model, listener = Net(), Listener()
    key = calls.add(model, listener)
    for _ in range(4):
        model.head(model.body(x()))
        calls.note_step(key)
    assert nn.Module.__dict__["__call__"] is PLAIN_CALL
    assert listener.names_in(model) == ["body", "head"] * 4


def test_inner_calls_of_a_root_are_not_told(calls: RootCalls) -> None:
    model, listener = Net(), Listener()
    key = calls.add(model, listener)
    model(x())
    settle(calls, key)
    model(x())
    assert listener.roots == [model, model]


def test_what_wraps_the_model_is_the_root(calls: RootCalls) -> None:
    model, listener = Net(), Listener()
    around = Around(model)
    key = calls.add(model, listener)
    around(x())
    settle(calls, key)
    around(x())
    assert listener.roots == [around, around]


def test_other_modules_of_the_script_are_not_told(calls: RootCalls) -> None:
    model, listener = Net(), Listener()
    calls.add(model, listener)
    Net()(x())
    nn.CrossEntropyLoss()(model(x()), torch.zeros(3, dtype=torch.long))
    assert listener.roots == [model]


@pytest.mark.filterwarnings("ignore:.torch.jit.trace")
def test_calls_that_train_nothing_are_not_told(calls: RootCalls) -> None:
    model, listener = Net(), Listener()
    calls.add(model, listener)
    with torch.no_grad():
        model(x())
    torch.jit.trace(model, x())
    assert listener.roots == []


def test_recompute_of_a_checkpoint_is_not_told(calls: RootCalls) -> None:
    model, listener = Net(), Listener()
    calls.add(model, listener)
    checkpoint(model.body, x().requires_grad_(), use_reentrant=False).sum().backward()
    assert listener.names_in(model) == ["body"]


def test_each_of_two_listeners_is_told_once(calls: RootCalls) -> None:
    first, second = Net(), Net()
    both = nn.ModuleList([first, second])
    of_first, of_second, of_both = Listener(), Listener(), Listener()
    keys = [calls.add(*pair) for pair in ((first, of_first), (second, of_second), (both, of_both))]
    second(torch.nn.functional.pad(first(x()), (0, 2)))
    settle(calls, *keys)
    second(torch.nn.functional.pad(first(x()), (0, 2)))
    assert of_first.roots == [first] * 2
    assert of_second.roots == [second] * 2
    assert of_both.roots == [first, second] * 2


def test_root_called_inside_of_another_ones_root_is_told_to_its_own_listener(calls: RootCalls) -> None:
    inner, outer = Net(), Listener()
    hidden = [inner]

    class Outer(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            result: Tensor = hidden[0](x)
            return result

    model, of_inner = Outer(), Listener()
    calls.add(model, outer)
    calls.add(inner, of_inner)
    model(x())
    assert (outer.roots, of_inner.roots) == ([model], [inner])


def test_exception_leaves_no_root_open(calls: RootCalls) -> None:
    model, listener = Net(), Listener()
    calls.add(model, listener)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="shapes"):
            model(torch.ones(3, 5))
    assert listener.roots == [model, model]


@pytest.mark.parametrize("is_settled", [False, True])
def test_traceback_that_a_script_prints_shows_torchs_files_alone(calls: RootCalls, is_settled: bool) -> None:
    model = Net()
    key = calls.add(model, root_listener := Listener())
    model(x())
    if is_settled:
        settle(calls, key)
    with pytest.raises(RuntimeError) as caught:
        model(torch.ones(3, 5))
    assert len(root_listener.roots) == 2
    assert "probe/root_calls" not in "".join(traceback.format_tb(caught.tb))
    assert any(is_own_frame(frame) for frame, _ in traceback.walk_tb(caught.tb))


def test_threads_have_roots_of_their_own(calls: RootCalls) -> None:
    model, listener = Net(), Listener()

    class Threaded(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            thread = threading.Thread(target=model, args=(x,))
            thread.start()
            thread.join(10)
            return model.head(x)

    model.extra = Threaded()
    calls.add(model, listener)
    model.extra(x())
    assert listener.roots == [model.extra, model]


def test_copies_and_pickles_know_nothing(calls: RootCalls) -> None:
    model, listener = Net(), Listener()
    key = calls.add(model, listener)
    model(x())
    settle(calls, key)
    copy.deepcopy(model)(x())
    file = io.BytesIO()
    torch.save(model, file)
    assert b"probe" not in file.getvalue().replace(b"test_root_calls", b"")
    assert listener.roots == [model]


def test_overridden_call_is_told_with_its_own_arguments(calls: RootCalls) -> None:
    class Scaled(nn.Linear):
        def __call__(self, x: Tensor) -> Any:
            return super().__call__(2 * x)

    given = []

    class Noting(Listener):
        def call_root(self, call: Callable[..., Any], root: nn.Module, args: Any, kwargs: Any) -> Any:
            given.append(args[0].sum().item())
            return super().call_root(call, root, args, kwargs)

    model = nn.Sequential(Scaled(4, 2))
    expected = model[0](x())
    key = calls.add(model, Noting())
    assert torch.equal(model[0](x()), expected)
    settle(calls, key)
    assert torch.equal(model[0](x()), expected)
    assert given == [12.0, 12.0]


def test_call_that_goes_straight_to_forward_is_told(calls: RootCalls) -> None:
    class Direct(nn.Linear):
        def __call__(self, x: Tensor) -> Tensor:
            return self.forward(x)

    model, listener = nn.Sequential(Direct(4, 2)), Listener()
    calls.add(model, listener)
    model[0](x())
    assert listener.names_in(model) == ["0"]


def test_root_called_only_later_is_found_within_a_step(calls: RootCalls) -> None:
    model, listener = Net(), Listener()
    key = calls.add(model, listener)
    for step in range(7):
        (model.body if step < 4 else model.head)(x())
        calls.note_step(key)
    assert listener.names_in(model) == ["body"] * 4 + ["head"] * 2


def test_root_called_besides_the_known_ones_is_found_when_asked_for(calls: RootCalls) -> None:
    model, listener = Net(), Listener()
    key = calls.add(model, listener)
    model.body(x())
    settle(calls, key)
    calls.look_again(key)
    model.head(model.body(x()))
    assert listener.names_in(model)[-2:] == ["body", "head"]


def test_root_called_besides_the_known_ones_is_found_by_itself(calls: RootCalls) -> None:
    model, listener = Net(), Listener()
    key = calls.add(model, listener)
    for step in range(300):
        model.body(x())
        if step > 150:
            model.head(x())
        calls.note_step(key)
    assert "head" in listener.names_in(model)


def test_script_that_calls_no_module_is_looked_at_rarely(calls: RootCalls) -> None:
    key = calls.add(Net(), Listener())
    looking = 0
    for _ in range(1000):
        looking += nn.Module.__dict__["__call__"] is not PLAIN_CALL
        calls.note_step(key)
    assert looking < 20


def test_fx_traces_a_model_that_contains_a_root_as_before(calls: RootCalls) -> None:
    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net, self.norm = Net(), nn.LayerNorm(2)

        def forward(self, x: Tensor) -> Tensor:
            result: Tensor = self.norm(self.net(x))
            return result

    outer = Outer()
    expected = torch.fx.symbolic_trace(outer).code
    key = calls.add(outer.net, Listener())
    outer.net.head(x())
    assert torch.fx.symbolic_trace(outer).code == expected
    settle(calls, key)
    assert torch.fx.symbolic_trace(outer).code == expected


def test_call_that_someone_put_over_ours_stays(calls: RootCalls) -> None:
    model, listener, seen = Net(), Listener(), []
    key = calls.add(model, listener)
    ours = nn.Module.__call__

    def theirs(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        seen.append(self)
        return ours(self, *args, **kwargs)

    nn.Module.__call__ = theirs  # type: ignore[method-assign]
    try:
        calls.remove(key)
        model.head(x())
        assert nn.Module.__call__ is theirs
    finally:
        nn.Module.__call__ = PLAIN_CALL  # type: ignore[method-assign]
    assert (seen, listener.roots) == ([model.head], [])


def test_scout_is_told_of_every_outermost_call_until_it_leaves(calls: RootCalls) -> None:
    first, second, listener = Net(), Net(), Listener()
    key = calls.add_scout(listener)
    second(first.body(x()))
    calls.remove(key)
    first(x())
    assert listener.roots == [first.body, second]


def test_model_that_is_dropped_is_not_kept(calls: RootCalls) -> None:
    model, listener = Net(), Listener()
    key = calls.add(model, listener)
    model(x())
    settle(calls, key)
    listener.roots.clear()
    del model
    assert not calls._alive


def test_wrappers_are_compiled_once_and_have_a_code_of_their_own() -> None:
    scope, source = {"answer": 41}, "\ndef wrapper(): return answer\n"
    first, second = (function_in_torch(source, {**scope, "answer": answer}) for answer in (1, 2))
    found = function_in_torch.__globals__["_compiled"].cache_info()
    assert (first(), second()) == (1, 2)
    # What torch.compile keeps for one of them is found by its code.
    assert first.__code__ is not second.__code__
    assert first.__code__.co_filename == nn.modules.module.__file__
    third = function_in_torch(source, {**scope}, line=900)
    assert third.__code__.co_firstlineno == 900
    assert function_in_torch.__globals__["_compiled"].cache_info().misses == found.misses + 1
