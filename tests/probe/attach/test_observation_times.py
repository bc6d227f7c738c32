"""Module times by a clock that only the modules move, and memory by what the test itself saves."""

import numpy as np
import pytest
import torch
from observed_steps import Watched, seeded
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from probe.attach.observation.call_clock import HostClock

TIMES = ("module_times",)


class Hands:
    """A clock that stands still unless somebody works."""

    def __init__(self) -> None:
        self.ns = 0

    def now_ns(self) -> int:
        return self.ns

    def clock(self) -> HostClock:
        return HostClock(self.now_ns)


class Work(torch.autograd.Function):
    """Moves the clock's hands in backward."""

    @staticmethod
    def forward(ctx, x, hands, seconds):
        ctx.hands, ctx.seconds = hands, seconds
        return x * 1

    @staticmethod
    def backward(ctx, gradient):
        ctx.hands.ns += int(ctx.seconds * 1e9)
        return gradient * 1, None, None


class Worker(nn.Module):
    """Takes some time forward and some backward, besides that of its children."""

    def __init__(self, hands: Hands, forward: float, backward: float, *children: nn.Module) -> None:
        super().__init__()
        self.hands, self.costs, self.parts = hands, (forward, backward), nn.ModuleList(children)

    def forward(self, x: Tensor) -> Tensor:
        self.hands.ns += int(self.costs[0] * 1e9)
        for part in self.parts:
            x = part(Work.apply(x, self.hands, self.costs[1] / (len(self.parts) + 1)))
        return Work.apply(x, self.hands, self.costs[1] / (len(self.parts) + 1))


def make(hands: Hands) -> nn.Module:
    inner = Worker(hands, 3, 5, Worker(hands, 1, 2), Worker(hands, 4, 7))
    return Worker(hands, 10, 30, inner, Worker(hands, 0, 11))


EXPECTED = {
    # name: forward and backward time, of its own; then with its children's
    "": (10, 30, 18, 55),
    "parts.0": (3, 5, 8, 14),
    "parts.0.parts.0": (1, 2, 1, 2),
    "parts.0.parts.1": (4, 7, 4, 7),
    "parts.1": (0, 11, 0, 11),
}


@pytest.mark.parametrize("due", [TIMES, (*TIMES, "activations", "activation_gradients", "module_memory")])
def test_times_are_those_that_each_module_took(due: tuple[str, ...]) -> None:
    hands = Hands()
    watched = Watched(make(hands), host_clock=hands.clock)
    found = watched.step(torch.ones(2, requires_grad=True) * 1, due=due)
    columns = ("forward_self_time_s", "backward_self_time_s", "forward_time_s", "backward_time_s")
    for name, expected in EXPECTED.items():
        assert [found.value(column, name) for column in columns] == pytest.approx(expected), name


def test_times_of_micro_steps_are_added_up() -> None:
    hands = Hands()
    watched = Watched(make(hands), host_clock=hands.clock)
    for _ in range(3):
        watched.forward(torch.ones(2, requires_grad=True) * 1, due=TIMES).sum().backward()
        watched.observer.end_backward()
        hands.ns += 10**12
    found = watched.collect()
    assert found.value("backward_time_s", "parts.0") == pytest.approx(3 * 14)
    assert found.value("forward_time_s", "") == pytest.approx(3 * 18)


def test_own_work_of_the_probe_is_no_modules_time() -> None:
    ticks = iter(range(10**6))
    watched = Watched(seeded(lambda: nn.Sequential(nn.Linear(2, 2), nn.ReLU())))
    watched.observer._host_clock = lambda: HostClock(lambda: next(ticks))
    found = watched.step(torch.ones(1, 2), due=TIMES)
    # Every reading moves this clock by 1 ns; a leaf's forward lies between two readings next to each other.
    assert found.value("forward_time_s", "0") == pytest.approx(1e-9)
    # The container's: three stretches of its own and its two children's.
    assert found.value("forward_time_s", "") == pytest.approx(5e-9)


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_backward_of_a_checkpoint_belongs_to_the_modules_in_it(use_reentrant: bool) -> None:
    hands = Hands()

    class Root(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.block = nn.Sequential(Worker(hands, 1, 6), nn.Tanh())
            self.head = Worker(hands, 1, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(checkpoint(self.block, x, use_reentrant=use_reentrant))

    found = Watched(Root(), host_clock=hands.clock).step(torch.ones(2, requires_grad=True) * 1, due=TIMES)
    assert found.value("backward_time_s", "head") == pytest.approx(3)
    # The recomputation (1 s) is backward time; in a reentrant one no module is seen, so it is the parent's.
    column, owner = ("backward_self_time_s", "") if use_reentrant else ("backward_time_s", "block")
    assert found.value(column, owner) == pytest.approx(7)


def test_saved_bytes_are_those_of_the_modules_own_operations() -> None:
    class Saver(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear, self.act = nn.Linear(8, 16), nn.Sigmoid()

        def forward(self, x: Tensor) -> Tensor:
            return self.act(self.linear(x)).square()

    found = Watched(Saver()).step(torch.ones(4, 8), due=("module_memory",))
    saved = {info.name: found.value("saved_bytes", info.name) for info in found.modules}
    # linear: its input; sigmoid: its result, which square saves too, but not a second time.
    assert saved == {"": 0, "linear": 4 * 8 * 4, "act": 4 * 16 * 4}
    outputs = {info.name: found.value("output_bytes", info.name) for info in found.modules}
    assert outputs == {"": 4 * 16 * 4, "linear": 4 * 16 * 4, "act": 4 * 16 * 4}
    assert found.value("parameter_bytes", "linear") == (8 * 16 + 16) * 4


def test_new_output_in_the_memory_of_one_that_is_gone_is_new() -> None:
    """As where an allocator gives the same address again: what was there was another storage."""
    memory = bytearray(4 * 8 * 4)

    def allocated() -> Tensor:
        return torch.frombuffer(memory, dtype=torch.float32).requires_grad_()

    class Reused(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.part = nn.Identity()

        def forward(self, x: Tensor) -> Tensor:
            self.part(allocated())
            return allocated()

    found = Watched(Reused()).step(torch.ones(4, 8), due=("module_memory",))
    assert found.value("output_bytes", "") == 4 * 8 * 4


def test_saved_bytes_add_up_to_what_saved_tensor_hooks_see() -> None:
    model = seeded(
        lambda: nn.Sequential(
            nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(72, 4)
        )
    )
    own = {tensor.untyped_storage().data_ptr() for tensor in (*model.parameters(), *model.buffers())}
    kept: dict[int, Tensor] = {}

    def pack(tensor: Tensor) -> Tensor:
        if tensor.untyped_storage().data_ptr() not in own:
            kept[tensor.untyped_storage().data_ptr()] = tensor.detach()
        return tensor

    x = torch.randn(2, 3, 8, 8)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        model(x)
    found = Watched(model).step(x, due=("module_memory",))
    expected = sum(tensor.untyped_storage().nbytes() for tensor in kept.values())
    assert found.columns["saved_bytes"].sum() == expected


def test_checkpointed_modules_save_nothing_and_are_not_recomputed() -> None:
    runs = []

    class Root(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.block = nn.Sequential(nn.Linear(4, 4), nn.Tanh())

        def forward(self, x: Tensor) -> Tensor:
            def run(y: Tensor) -> Tensor:
                runs.append(1)
                return self.block(y)

            return checkpoint(run, x, use_reentrant=False)

    watched = Watched(Root())
    output = watched.forward(torch.ones(2, 4, requires_grad=True) * 1, due=("module_memory",))
    assert len(runs) == 1
    output.sum().backward()
    found = watched.collect()
    assert len(runs) == 2
    assert np.all(found.columns["saved_bytes"] == 0)
