"""A loss made in a function that has returned: its line, and a training that is left as it was."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from journals import read_journal
from torch import Tensor, nn

import probe
from probe.wire import Event

pytestmark = pytest.mark.usefixtures("one_thread")
STEPS, BAD = 8, 5
Batch = tuple[Tensor, float]


def compute_loss(model: nn.Module, batch: Batch) -> Tensor:
    x, parts = batch
    return model(x).mean() / parts  # COMPUTE


class Meter:
    def __init__(self) -> None:
        self.total, self.count = 0.0, 0

    def add(self, value: float) -> None:
        self.total, self.count = self.total + value, self.count + 1


class Trainer:
    """Counts, keeps lists and a meter: what a step changes must be changed once."""

    def __init__(self, model: nn.Module) -> None:
        self.model, self.opt = model, torch.optim.SGD(model.parameters(), lr=0.01)
        self.meter, self.losses, self.steps = Meter(), list[float](), 0

    def training_step(self, batch: Batch) -> Tensor:
        x, parts = batch
        out = self.model(x)
        self.steps += 1
        loss = out.mean() / parts  # STEP
        self.losses.append(float(loss.detach()))
        self.meter.add(float(x.sum()))
        return loss

    def update(self, loss: Tensor, scale: float = 1.0) -> None:
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()

    @property
    def kept(self) -> Any:
        losses = torch.tensor(self.losses)
        return self.steps, self.meter.total, self.meter.count, len(losses), float(losses.nansum())


def handed_on(trainer: Trainer, batch: Batch) -> None:
    trainer.update(trainer.training_step(batch))


def named_first(trainer: Trainer, batch: Batch) -> None:
    loss = trainer.training_step(batch)
    trainer.update(loss, scale=1.0)


def by_keyword(trainer: Trainer, batch: Batch) -> None:
    trainer.update(scale=1.0, loss=compute_loss(trainer.model, batch))


def with_a_part_of_its_own(trainer: Trainer, batch: Batch) -> None:
    def also(loss: Tensor) -> None:
        part = trainer.model(batch[0]).square().mean() * batch[1]
        trainer.update(loss + part / part.detach().mul(0 if batch[1] == 0 else 1))

    x, _ = batch
    loss = trainer.model(x).mean()
    also(loss)


def run_of(step: Callable[[Trainer, Batch], None], spool: Path | None) -> tuple[Trainer, Event | None]:
    torch.manual_seed(0)
    trainer = Trainer(nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.1), nn.Linear(8, 3)))
    batches = [(torch.randn(8, 4), 0.0 if number == BAD else 1.0) for number in range(STEPS)]
    run = None if spool is None else probe.watch(trainer.model, trainer.opt, spool=spool, connect="")
    for batch in batches:
        step(trainer, batch)
    if run is None:
        return trainer, None
    assert spool is not None and run._guard.failures == 0
    run.close()
    (journal,) = spool.iterdir()
    return trainer, next(e for e in read_journal(journal).events if e.kind == "nonfinite_loss")


@pytest.mark.parametrize(
    ("step", "marker"), [(handed_on, "STEP"), (named_first, "STEP"), (by_keyword, "COMPUTE")]
)
def test_line_is_found_and_the_trainer_is_as_without_a_replay(
    step: Callable[[Trainer, Batch], None], marker: str, tmp_path: Path
) -> None:
    plain, _ = run_of(step, None)
    watched, event = run_of(step, tmp_path / "spool")

    assert event is not None and event.origin is not None
    assert (event.step, event.origin.op) == (BAD, "div"), event.message
    assert Path(__file__).read_text().splitlines()[event.stacks.forward[-1].line - 1].endswith(f"# {marker}")
    assert watched.kept == plain.kept
    for one, other in zip(watched.model.parameters(), plain.model.parameters(), strict=True):
        assert torch.equal(one, other) or (one.isnan() == other.isnan()).all()


def test_what_the_function_adds_is_not_blamed_on_the_loss_it_was_given(tmp_path: Path) -> None:
    _, event = run_of(with_a_part_of_its_own, tmp_path / "spool")
    assert event is not None
    lines = Path(__file__).read_text().splitlines()
    claimed = event.stacks.forward[-1].line if event.origin is not None and event.stacks.forward else None
    assert claimed is None or "part / part" in lines[claimed - 1], event.message
