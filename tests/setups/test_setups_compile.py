"""`torch.compile`: nothing breaks or compiles anew, numbers stay right, a compiled update is followed."""

import logging
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from reference import Scene, recorded
from small_training import batches, small_model
from thinned import thinned
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounter, CompileCounterWithBackend
from torch.nn import functional as F

import probe

# torch's own imports, at the first compilation of an optimizer.
pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit.script_method. is deprecated:DeprecationWarning")


@pytest.fixture(autouse=True)
def fresh_compiler() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def quiet_model() -> nn.Sequential:
    return nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 3))


class Model(nn.Module):
    """Of the test's own: torch's containers are not compiled by `Module.compile`."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = small_model()

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.inner(x)
        return result


@pytest.mark.parametrize("how", ["function before", "function after", "method before", "method after"])
def test_compiled_model_has_the_numbers_of_its_run_without_the_probe(tmp_path: Path, how: str) -> None:
    """Attached before or after compiling; neither a graph nor a compilation is added."""
    counts: list[tuple[int, int]] = []

    def loop(scene: Scene) -> nn.Module:
        torch._dynamo.reset()
        counter = CompileCounter()
        model = Model()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        def compiled() -> nn.Module:
            if how.startswith("function"):
                return torch.compile(model, backend=counter, fullgraph=True)  # type: ignore[return-value]
            model.compile(backend=counter)
            return model

        called = compiled() if how.endswith("after") else model
        with scene.watch(called, optimizer):
            called = compiled() if how.endswith("before") else called
            for inputs, targets in batches(5):
                optimizer.zero_grad()
                scene.backward(F.cross_entropy(called(inputs), targets), samples=8)
                scene.note(model)
                optimizer.step()
        counts.append((counter.frame_count, counter.op_count))
        return model

    assert recorded(loop, tmp_path).differences(frames=5) == []
    assert counts[0] == counts[1]
    assert counts[0][0] == 1


def test_attaching_and_detaching_between_steps_compiles_nothing_anew(tmp_path: Path) -> None:
    counter = CompileCounter()
    model = quiet_model()
    compiled = torch.compile(model, backend=counter)
    scene = Scene(tmp_path)
    for step in range(6):
        if step % 2:
            with scene.watch(model):
                compiled(torch.ones(8, 6)).sum().backward()
        else:
            compiled(torch.ones(8, 6)).sum().backward()
    assert counter.frame_count == 1


@pytest.mark.slow
def test_inductor_model_has_the_numbers_of_its_run_without_the_probe(tmp_path: Path) -> None:
    def loop(scene: Scene) -> nn.Module:
        torch._dynamo.reset()
        model = small_model()
        optimizer = torch.optim.AdamW(model.parameters())
        compiled = torch.compile(model)
        with scene.watch(compiled, optimizer):  # type: ignore[arg-type]
            for inputs, targets in batches(4):
                optimizer.zero_grad()
                with torch.autocast("cpu", torch.bfloat16):
                    loss = F.cross_entropy(compiled(inputs), targets)
                scene.backward(loss, samples=8)
                scene.note(model)
                optimizer.step()
        return model

    assert recorded(loop, tmp_path).differences(frames=4) == []


@pytest.mark.parametrize(
    ("cleared", "given"),
    thinned(["before the forward", "after the update", "never"], [True, False], every=2),
)
def test_compiled_update_ends_a_step_at_the_next_forward_and_says_so(
    tmp_path: Path, given: bool, cleared: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A compiled `step` fires no hook; its gradients are those that the last backward left."""

    def loop(scene: Scene) -> nn.Module:
        torch._dynamo.reset()
        model = quiet_model()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        update = torch.compile(optimizer.step, backend="eager")
        with scene.watch(model, optimizer if given else None):
            for inputs, targets in batches(6):
                if cleared == "before the forward":
                    optimizer.zero_grad()
                scene.backward(F.cross_entropy(model(inputs), targets), samples=8)
                scene.note(model)
                update()
                if cleared == "after the update":
                    optimizer.zero_grad()
            model(inputs)
        return model

    with caplog.at_level(logging.WARNING, "probe"):
        assert recorded(loop, tmp_path).differences(frames=6) == []
    (told,) = [record.getMessage() for record in caplog.records if record.name.startswith("probe")]
    assert "no optimizer hook tells of it (a compiled optimizer.step, say)" in told


def test_compiled_update_after_accumulation_is_one_step(tmp_path: Path) -> None:
    def loop(scene: Scene) -> nn.Module:
        torch._dynamo.reset()
        model = quiet_model()
        optimizer = torch.optim.Adam(model.parameters(), lr=torch.tensor(0.01))
        update = torch.compile(optimizer.step, backend="eager")
        with scene.watch(model, optimizer):
            for index, (inputs, targets) in enumerate(batches(8)):
                loss = F.cross_entropy(model(inputs), targets)
                scene.backward(loss, raw=loss / 2, samples=8)
                if index % 2:
                    scene.note(model)
                    update()
                    optimizer.zero_grad()
            model(inputs)
        return model

    assert recorded(loop, tmp_path).differences(frames=4) == []


def test_compiled_training_step_ends_at_the_next_backward(tmp_path: Path) -> None:
    """Forward and update are compiled: only the backward between them is seen, and no sample count."""

    def loop(scene: Scene) -> nn.Module:
        torch._dynamo.reset()
        model = quiet_model()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)

        @torch.compile(backend="eager")
        def forward(inputs: Tensor, targets: Tensor) -> Tensor:
            return F.cross_entropy(model(inputs), targets)

        update = torch.compile(optimizer.step, backend="eager")
        with scene.watch(model, optimizer):
            for inputs, targets in batches(6):
                optimizer.zero_grad()
                scene.backward(forward(inputs, targets))
                scene.note(model)
                update()
        return model

    assert recorded(loop, tmp_path).differences(frames=6) == []


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")
def test_compiled_model_and_hooked_update_in_one_function_add_no_graph(tmp_path: Path) -> None:
    counts: list[tuple[int, int]] = []

    def loop(scene: Scene) -> nn.Module:
        torch._dynamo.reset()
        counter = CompileCounterWithBackend("eager")
        model = quiet_model()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)

        def train_step(inputs: Tensor, targets: Tensor) -> Tensor:
            loss = F.cross_entropy(model(inputs), targets)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            return loss

        compiled: Callable[[Tensor, Tensor], Tensor] = torch.compile(train_step, backend=counter)
        with scene.watch(model, optimizer):
            for inputs, targets in batches(4):
                compiled(inputs, targets)
        counts.append((counter.frame_count, counter.op_count))
        return model

    recording = recorded(loop, tmp_path)
    assert recording.disturbances == []
    assert counts[0] == counts[1]
    assert not any("probe_failures" in frame.scalars for frame in recording.journal.frames)


def test_checkpoint_inside_a_compiled_model_is_one_forward(tmp_path: Path) -> None:
    class Checkpointed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.last = quiet_model(), nn.Linear(3, 3)

        def forward(self, x: Tensor) -> Tensor:
            hidden = torch.utils.checkpoint.checkpoint(self.inner, x, use_reentrant=False)
            result: Tensor = self.last(hidden)
            return result

    def loop(scene: Scene) -> nn.Module:
        torch._dynamo.reset()
        model = Checkpointed()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        compiled = torch.compile(model, backend="aot_eager")
        with scene.watch(compiled, optimizer):  # type: ignore[arg-type]
            for inputs, targets in batches(3):
                optimizer.zero_grad()
                scene.backward(F.cross_entropy(compiled(inputs), targets), samples=8)
                scene.note(model)
                optimizer.step()
        return model

    assert recorded(loop, tmp_path).differences(frames=3) == []


def test_compiled_function_that_clears_gradients_stays_one_graph(spool: Path) -> None:
    model = quiet_model()
    counter = CompileCounter()

    def scaled_anew(inputs: Tensor) -> Tensor:
        model.zero_grad()
        return model(inputs).sum() * 2

    compiled = torch.compile(scaled_anew, backend=counter, fullgraph=True)
    with probe.watch(model, spool=spool):
        compiled(torch.randn(8, 6)).backward()
    assert counter.frame_count == 1
