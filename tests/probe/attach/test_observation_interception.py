"""That observing modules changes nothing: numbers, classes, pickles, compiled graphs, exceptions."""

import copy
import io
import shutil
import threading
import traceback
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from observed_steps import EVERYTHING, PLAIN_CALL, Watched, seeded
from torch import Tensor, nn
from torch._dynamo.utils import counters
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from probe.attach.call_wrappers import is_own_frame
from probe.attach.observation.module_calls import module_calls
from probe.attach.root_calls import root_calls


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 16), nn.LayerNorm(16), nn.ReLU(inplace=True), nn.Dropout(0.3))
        self.lstm = nn.LSTM(16, 8, batch_first=True)
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head((self.lstm(self.body(x))[0] * 2).relu_())


class Plain(nn.Module):
    """Net without what a compiler is slow at."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Dropout(0.3))
        self.head = nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x))


def train(
    make: Callable[[], nn.Module], *, observe: bool, bf16: bool = False, backend: str | None = None
) -> list[Tensor]:
    """Train for five steps; returns all parameters and the state of the random generator."""
    model = seeded(make)
    called = model if backend is None else torch.compile(model, backend=backend)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    watched = Watched(model)
    for step in range(5):
        optimizer.zero_grad()
        x = torch.randn(4, 5, 6)
        due = (*EVERYTHING, "module_calls") if observe and step != 1 else ()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=bf16):
            output = watched.forward(x, due=due, model=called)
            loss = output.float().square().mean()
        loss.backward()
        watched.observer.end_backward()
        if due:
            watched.collect()
        optimizer.step()
    watched.observer.stop()
    return [*(parameter.detach() for parameter in model.parameters()), torch.get_rng_state()]


@pytest.mark.parametrize("bf16", [False, True])
def test_weights_are_bit_identical_with_everything_observed(bf16: bool) -> None:
    results = [train(Net, observe=observe, bf16=bf16) for observe in (False, True)]
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


# torch's own: deprecated jit parts that inductor loads, dynamo looking at `.grad` after a graph break.
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("backend", "bf16"), [("aot_eager", False), ("inductor", False), ("inductor", True)])
def test_weights_and_graphs_are_the_same_when_compiled(backend: str, bf16: bool) -> None:
    if backend == "inductor" and shutil.which("g++") is None:
        pytest.skip("inductor needs a C++ compiler")
    results, counts = [], []
    for observe in (False, True):
        torch._dynamo.reset()
        counters.clear()
        results.append(train(Plain, observe=observe, bf16=bf16, backend=backend))
        counts.append(
            (counters["stats"]["unique_graphs"], dict(counters["graph_break"]), dict(counters["frames"]))
        )
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))
    assert counts[0] == counts[1]


class Middle(nn.Module):
    """A part that breaks the graph, so that inner modules are called from Python."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.a(x)
        torch._dynamo.graph_break()
        return self.b(x)


def _sequential_compiled() -> nn.Module:
    model = nn.Sequential(nn.Sequential(Middle(), nn.ReLU()), nn.Linear(4, 2))
    model[0].compile(backend="aot_eager")
    return model


def _function_compiled() -> nn.Module:
    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.middle = Middle()
            self.run = torch.compile(lambda x: self.middle(x).relu(), backend="aot_eager")

        def forward(self, x: Tensor) -> Tensor:
            return self.run(x)

    return Outer()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("make", [_sequential_compiled, _function_compiled])
@pytest.mark.parametrize(("first", "features"), [(0, EVERYTHING), (2, EVERYTHING), (0, ("activations",))])
def test_observing_compiles_nothing_else(
    make: Callable[[], nn.Module], first: int, features: tuple[str, ...]
) -> None:
    graphs = []
    for observe in (False, True):
        torch._dynamo.reset()
        counters.clear()
        watched = Watched(seeded(make))
        for step in range(5):
            due = features if observe and step >= first and step != 3 else ()
            watched.forward(torch.ones(2, 4), due=due).sum().backward()
            watched.observer.end_backward()
            watched.observer.collect()
        assert watched.guard.failures == 0
        graphs.append((dict(counters["stats"]), dict(counters["frames"]), dict(counters["graph_break"])))
    assert graphs[0] == graphs[1]


def test_starting_and_stopping_leaves_the_class_as_it_was() -> None:
    model = seeded(Plain)
    before = {key: dict(module.__dict__) for key, module in model.named_modules()}
    for _ in range(1000):
        watched = Watched(model)
        watched.observer.begin_forward(EVERYTHING)
        assert nn.Module.__call__ is not PLAIN_CALL
        watched.observer.stop()
        assert nn.Module.__call__ is PLAIN_CALL
    watched.observer.stop()
    assert {key: dict(module.__dict__) for key, module in model.named_modules()} == before
    assert not module_calls.is_installed


def test_nothing_is_installed_outside_a_sampled_forward() -> None:
    watched = Watched(seeded(Plain))
    watched.forward(torch.ones(1, 6), due=())
    assert watched.observer.collect() is None
    watched.forward(torch.ones(1, 6)).sum().backward()
    assert nn.Module.__call__ is PLAIN_CALL


def test_model_and_output_are_saved_and_copied_without_a_trace() -> None:
    watched = Watched(seeded(Plain))
    output = watched.forward(torch.ones(1, 6))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        file = io.BytesIO()
        torch.save((watched.model, output), file)
    assert b"probe" not in file.getvalue() and b"nanscope" not in file.getvalue()
    copied = copy.deepcopy(watched.model)
    assert Watched(copied).step(torch.ones(1, 6)).value("calls", "head") == 1


def test_exceptions_pass_and_the_next_step_is_right() -> None:
    class Fails(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.fails = nn.Linear(2, 2), True

        def forward(self, x: Tensor) -> Tensor:
            x = self.inner(x)
            if self.fails:
                raise KeyError("mine")
            return x

    model = nn.Sequential(nn.Linear(2, 2), Fails())
    watched = Watched(model)
    with pytest.raises(KeyError, match="mine") as caught:
        watched.forward(torch.ones(1, 2))
    frames = [frame for frame, _ in traceback.walk_tb(caught.value.__traceback__)]
    # torch's own wrapper is replaced by one of ours in its place; there is nothing else of ours.
    assert [f.f_code.co_name for f in frames if is_own_frame(f)] == ["_wrapped_call_impl"] * 1
    assert nn.Module.__call__ is PLAIN_CALL
    watched.observer.collect()
    model[1].fails = False
    assert watched.step(torch.ones(1, 2)).columns["calls"].tolist() == [1, 1, 1, 1]


def test_call_that_raises_and_is_caught_is_no_part_of_the_step() -> None:
    class Fails(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(2, 2)

        def forward(self, x: Tensor) -> Tensor:
            self.inner(x)
            raise ValueError

    class Careful(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = Fails(), nn.Linear(2, 2)

        def forward(self, x: Tensor) -> Tensor:
            try:
                return self.first(x)
            except ValueError:
                return self.second(x)

    found = Watched(Careful()).step(torch.ones(1, 2))
    assert [found.value("calls", name) for name in ("", "first", "first.inner", "second")] == [
        1,
        None,
        None,
        1,
    ]


def test_forward_whose_end_was_never_told_is_forgotten() -> None:
    watched = Watched(seeded(Plain))
    watched.observer.begin_forward(EVERYTHING, watched.model)
    watched.observer.collect()
    assert watched.step(torch.ones(1, 6)).value("calls", "head") == 1
    assert nn.Module.__call__ is PLAIN_CALL


def test_calls_on_other_threads_are_not_counted() -> None:
    class Threaded(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(2, 2)

        def forward(self, x: Tensor) -> Tensor:
            thread = threading.Thread(target=lambda: self.inner(x))
            thread.start()
            thread.join(10)
            return self.inner(x)

    assert Watched(Threaded()).step(torch.ones(1, 2)).value("calls", "inner") == 1


def test_module_calls_that_someone_wrapped_meanwhile_stay_wrapped() -> None:
    watched = Watched(seeded(Plain))
    seen = []
    watched.observer.begin_forward(EVERYTHING, watched.model)
    ours = nn.Module.__call__

    def theirs(self: nn.Module, *args: object) -> object:
        seen.append(self)
        return ours(self, *args)

    nn.Module.__call__ = theirs
    try:
        watched.observer.stop()
        assert nn.Module.__call__ is theirs
        again = Watched(watched.model)
        assert again.step(torch.ones(1, 6)).value("calls", "head") == 1
        assert nn.Module.__call__ is theirs and seen
    finally:
        nn.Module.__call__ = PLAIN_CALL


class Silent:
    """Listens to roots, and lets them run."""

    def call_root(self, call: Callable[..., Any], root: nn.Module, args: Any, kwargs: Any) -> Any:
        return call(root, *args, **kwargs)


@pytest.mark.parametrize("first", ["observer", "roots"])
@pytest.mark.parametrize("first_to_end", ["observer", "roots"])
def test_two_of_ours_leave_nothing_in_whatever_order_they_end(first: str, first_to_end: str) -> None:
    """As sessions in several threads do: one looks for roots while the other observes a forward."""
    watched, keys = Watched(seeded(Plain)), []
    begin = {
        "observer": lambda: watched.observer.begin_forward(EVERYTHING, watched.model),
        "roots": lambda: keys.append(root_calls.add(watched.model, Silent())),
    }
    end = {"observer": watched.observer.stop, "roots": lambda: root_calls.remove(keys[0])}
    other = {"observer": "roots", "roots": "observer"}
    for part in (first, other[first]):
        begin[part]()
    for part in (first_to_end, other[first_to_end]):
        end[part]()
    assert nn.Module.__call__ is PLAIN_CALL
    assert torch._dynamo.utils.unpatched_nn_module_call is PLAIN_CALL


def test_modules_that_the_script_adds_get_rows() -> None:
    model = nn.Sequential(nn.Linear(2, 2))
    watched = Watched(model)
    assert len(watched.step(torch.ones(1, 2)).modules) == 2
    model.append(nn.Linear(2, 2))
    watched.step(torch.ones(1, 2))
    found = watched.step(torch.ones(1, 2))
    assert (len(found.modules), found.generation) == (3, 2)
    assert found.value("calls", "1") == 1


def test_own_operations_stay_out_of_the_scripts_modes() -> None:
    class Sees(TorchDispatchMode):
        def __init__(self) -> None:
            super().__init__()
            self.operations: list[str] = []

        def __torch_dispatch__(self, function, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            self.operations.append(str(function))
            return function(*args, **(kwargs or {}))

    seen = []
    for due in ((), EVERYTHING):
        watched = Watched(seeded(Plain))
        with Sees() as mode:
            watched.forward(torch.ones(2, 6), due=due)
        seen.append(mode.operations)
        assert watched.guard.failures == 0
    assert seen[0] == seen[1]


def test_selective_checkpoint_recomputes_the_same() -> None:
    def keep_all(context: object, function: object, *args: object, **kwargs: object) -> CheckpointPolicy:
        return CheckpointPolicy.MUST_SAVE

    class Root(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.head = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)), nn.Linear(3, 3)

        def forward(self, x: Tensor) -> Tensor:
            def contexts() -> object:
                return create_selective_checkpoint_contexts(keep_all)

            x = checkpoint(self.body, x, use_reentrant=False, context_fn=contexts)
            return self.head(x).sum(dim=-1)

    results = [train(Root, observe=observe) for observe in (False, True)]
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))
