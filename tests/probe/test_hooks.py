"""What `watch` attaches: steps of less usual loops are seen, compiling and forking do not notice."""

import math
import os
from pathlib import Path

import pytest
import torch
from journals import read_journal
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounter
from torch.utils.checkpoint import checkpoint

import probe


def make_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))


@pytest.fixture
def spool(tmp_path: Path) -> Path:
    return tmp_path / "spool"


def steps_of(spool: Path) -> list[int]:
    (run,) = spool.iterdir()
    return [frame.step for frame in read_journal(run).frames]


def compiled_frames(watch: str) -> tuple[int, int]:
    """Train a compiled model; return dynamo's (frames, ops)."""
    torch._dynamo.reset()
    model, counter = make_model(), CompileCounter()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run = probe.watch(model, optimizer) if watch == "before" else None
    compiled = torch.compile(model, backend=counter)
    for step in range(4):
        if watch == "between" and step == 2:
            run = probe.watch(compiled, optimizer)
        compiled(torch.ones(3, 4)).sum().backward()
        optimizer.step()
    if run is not None:
        run.close()
    return counter.frame_count, counter.op_count


@pytest.mark.parametrize("watch", ["before", "between"])
def test_compiled_model_has_no_extra_graph_or_recompilation(watch: str) -> None:
    assert compiled_frames(watch) == compiled_frames("never")


def test_nested_step_calls_count_once(spool: Path) -> None:
    class Nested(torch.optim.SGD):
        def step(self, closure: object = None) -> None:  # type: ignore[override]
            super().step()

    model = make_model()
    optimizer = Nested(model.parameters(), lr=0.1)
    with probe.watch(model, optimizer):
        for _ in range(3):
            model(torch.ones(3, 4)).sum().backward()
            optimizer.step()
    assert steps_of(spool) == [0, 1, 2]


def test_two_optimizers_of_one_iteration_share_its_step(spool: Path) -> None:
    model = make_model()
    first = torch.optim.SGD(model[0].parameters(), lr=0.1)  # type: ignore[index]
    second = torch.optim.SGD(model[2].parameters(), lr=0.1)  # type: ignore[index]
    with probe.watch(model):
        for _ in range(2):
            for optimizer in (first, second):
                model(torch.ones(3, 4)).sum().backward()
                optimizer.step()
    assert steps_of(spool) == [0, 0, 1, 1]


def test_another_model_of_the_script_is_not_counted(spool: Path) -> None:
    model, other = make_model(), make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with probe.watch(model, optimizer):
        for _ in range(3):
            (other(torch.ones(3, 4)).sum() * 1000).backward()
            loss = model(torch.ones(3, 4)).sum()
            loss.backward()
            optimizer.step()
            newest = loss.item()
    (run,) = spool.iterdir()
    frames = read_journal(run).frames
    assert frames[-1].scalars["loss"] == pytest.approx(newest)


def test_step_that_raises_does_not_hide_the_next(spool: Path) -> None:
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def broken() -> Tensor:
        raise RuntimeError("closure")

    with probe.watch(model, optimizer):
        with pytest.raises(RuntimeError, match="closure"):
            optimizer.step(broken)
        for _ in range(2):
            model(torch.ones(3, 4)).sum().backward()
            optimizer.step()
    assert len(steps_of(spool)) == 2


def test_grad_scaler_scale_is_undone_and_its_overflow_is_information(spool: Path) -> None:
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**120)
    losses = []
    with probe.watch(model, optimizer):
        for _ in range(6):
            optimizer.zero_grad()
            loss = model(1e4 * torch.ones(3, 4)).sum()
            losses.append(loss.item())
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update(2.0**10)
    (run,) = spool.iterdir()
    journal = read_journal(run)
    assert [f.scalars["loss"] for f in journal.frames] == pytest.approx(losses)
    assert journal.frames[-1].stage == "unscaled"
    assert {e.kind for e in journal.events if e.severity != "info"} == set()
    assert "amp_overflow" in {e.kind for e in journal.events}


def test_forked_child_records_nothing(spool: Path) -> None:
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with probe.watch(model, optimizer) as run:
        child = os.fork()
        if child == 0:
            torch.set_num_threads(1)
            model(torch.ones(3, 4)).sum().backward()
            optimizer.step()
            os._exit(1 if run.active else 0)
        assert os.waitpid(child, 0)[1] == 0
        (model(torch.ones(3, 4)).sum() * math.pi).backward()
        optimizer.step()
    assert steps_of(spool) == [0]


def test_reentrant_checkpoint_is_one_backward(spool: Path) -> None:
    class Checkpointed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Linear(4, 4)
            self.inner = make_model()

        def forward(self, x: Tensor) -> Tensor:
            return checkpoint(self.inner, self.first(x), use_reentrant=True)

    model = Checkpointed()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with probe.watch(model, optimizer):
        (model(torch.ones(3, 4)).sum() * math.nan).backward()
        optimizer.step()
    (run,) = spool.iterdir()
    (frame,) = read_journal(run).frames
    # Judged inside the backward of the checkpoint, the first layer would not have its gradient yet.
    assert frame.missing == b""


def test_second_clipping_does_not_hide_what_the_first_changed(spool: Path) -> None:
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with probe.watch(model, optimizer):
        model(100 * torch.ones(3, 4)).square().sum().backward()
        total = nn.utils.clip_grad_norm_(model.parameters(), 1.0).item()
        nn.utils.clip_grad_value_(model.parameters(), 0.1)
        optimizer.step()
    (run,) = spool.iterdir()
    assert read_journal(run).frames[0].scalars["grad_norm"] == pytest.approx(total)
