"""Progress as a script tells it: what is written, what is known by itself, what stays unknown."""

from __future__ import annotations

import asyncio
import io
import math
from pathlib import Path
from typing import Any

import pytest
import torch
import tqdm
from progress_documents import progress_of
from small_training import seeded_model
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import probe
from probe.loop import progress_watch
from probe.wire.documents import read_body
from probe.wire.training_progress import TrainingProgress

pytestmark = pytest.mark.usefixtures("one_thread", "nothing_switched_off")


class Loop:
    """A watched model, and epochs of its training."""

    def __init__(self, **options: Any) -> None:
        self.model = seeded_model()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.run = probe.watch(self.model, self.optimizer, **options)
        samples = TensorDataset(torch.randn(12, 6), torch.arange(12) % 3)
        self.loader: DataLoader[Any] = DataLoader(samples, 4)

    def epoch(self) -> None:
        """Three steps."""
        for x, y in self.loader:
            self.optimizer.zero_grad()
            F.cross_entropy(self.model(x), y).backward()
            self.optimizer.step()


@pytest.mark.capability(63)
def test_what_is_told_is_written_with_the_steps_that_were_made(spool: Path) -> None:
    loop = Loop()
    loop.run.start_training(total_epochs=10, total_steps=1000)
    loop.epoch()
    loop.run.update_progress(epoch=2, step=1, loss=0.25, learning_rate=0.1)
    loop.run.close()
    last = progress_of(spool)[-1]
    assert (last.step, last.total_steps, last.is_estimate, last.ended) == (3, 1000, False, True)
    assert (last.epoch, last.total_epochs) == (2.0, 10)
    assert (last.loss, last.learning_rate) == (0.25, 0.1)


def test_steps_of_all_epochs_come_of_the_newest_one(spool: Path) -> None:
    loop = Loop()
    loop.run.start_training(total_epochs=4)
    loop.epoch()
    loop.epoch()
    loop.run.close()
    last = progress_of(spool)[-1]
    assert (last.step, last.total_steps, last.is_estimate, last.epoch) == (6, 12, True, 2.0)


def test_total_that_nobody_has_told_is_not_known(spool: Path) -> None:
    loop = Loop()
    loop.epoch()
    with loop.run.phase("warm-up"):
        loop.epoch()
        loop.run.close()
    last = progress_of(spool)[-1]
    assert (last.total_steps, last.total_epochs, last.phase, last.epoch) == (None, None, "warm-up", 2.0)


def test_more_epochs_than_were_told_have_no_total(spool: Path) -> None:
    loop = Loop()
    loop.run.start_training(total_epochs=1)
    loop.epoch()
    loop.epoch()
    loop.run.close()
    assert progress_of(spool)[-1].total_steps is None


def test_resumed_training_goes_on_from_the_step_that_is_told(spool: Path) -> None:
    loop = Loop()
    loop.run.start_training(total_steps=600)
    loop.run.update_progress(step=500)
    loop.epoch()
    loop.run.update_progress(step=503)
    loop.run.close()
    last = progress_of(spool)[-1]
    assert (last.step, last.steps_before, last.total_steps) == (503, 500, 600)


def test_run_that_tells_nothing_writes_nothing(spool: Path) -> None:
    model = seeded_model()
    with probe.watch(model):
        F.cross_entropy(model(torch.randn(4, 6)), torch.zeros(4, dtype=torch.long)).backward()
    assert progress_of(spool) == []


def test_outermost_bar_of_tqdm_is_shown_as_it_is(spool: Path) -> None:
    loop = Loop()
    with tqdm.tqdm(total=8, desc="epochs", file=io.StringIO()) as bar:
        for _ in range(2):
            loop.epoch()
            bar.update()
        loop.run.close()
    bar_state = progress_of(spool)[-1].bar
    assert bar_state is not None
    assert (bar_state.label, bar_state.done, bar_state.total) == ("epochs", 2.0, 8.0)


@pytest.mark.parametrize(
    ("ended", "last_step", "total_epochs", "epoch"),
    [(3, 23, None, 3.0), (3, 24, None, 4.0), (2, 15, 3, 2.0), (3, 23, 3, 3.0), (0, 23, None, 1.0)],
    ids=["whole", "stopped_in_the_next", "stopped_early", "as_planned", "in_the_first"],
)
def test_closing_counts_no_epoch_that_has_not_begun(
    ended: int, last_step: int, total_epochs: int | None, epoch: float
) -> None:
    board, steps = progress_watch.ProgressBoard(), 8 * ended
    board.start(total_epochs=total_epochs, total_steps=None)
    count = progress_watch.EpochCount(ended, steps, 8 if ended else None)
    watch = progress_watch.ProgressWatch(
        board,
        last_step=lambda: last_step,
        epochs=lambda: count,
        place=lambda: progress_watch.EpochPlace(steps, 8, True),
    )
    (closing,) = [read_body(document, TrainingProgress) for document in watch.close()]
    assert (closing.epoch, closing.ended) == (epoch, True)
    assert (closing.epoch_began is None) == (last_step + 1 == steps)


def test_model_that_is_called_without_steps_is_in_evaluation() -> None:
    now, loop = [0.0], Loop()
    watch = progress_watch.ProgressWatch(
        loop.run._progress,
        last_step=lambda: loop.run.steps_made - 1,
        epochs=lambda: loop.run._tracker.epochs.count,  # type: ignore[union-attr]
        clock=lambda: now[0],
    )
    loop.epoch()
    assert watch._state(0.0).phase == "training"
    with torch.no_grad():
        loop.model(torch.randn(2, 6))
    assert watch._state(1.0).phase == "evaluation"
    loop.epoch()
    state = watch._state(2.0)
    assert (state.phase, state.seconds_per_step) == ("training", 2.0 / 3)
    loop.run.close()


@pytest.mark.capability(62)
def test_async_variants_have_the_old_names_and_answers(spool: Path) -> None:
    loop = Loop()
    loop.epoch()
    next(loop.model.parameters()).grad.fill_(math.nan)  # type: ignore[union-attr]

    async def look() -> tuple[Any, ...]:
        await probe.aio.update_progress_async(epoch=1, step=3, loss=0.5, learning_rate=0.1)
        tensor = await probe.aio.check_tensor_anomalies_async(torch.tensor([1.0, math.nan]), "loss")
        gradients = await loop.run.aio.check_gradient_anomalies_async()
        return tensor, gradients, await probe.aio.check_gradient_anomalies_async(loop.model)

    tensor, gradients, same = asyncio.run(look())
    loop.run.close()
    assert (tensor["has_nan"], tensor["has_inf"], tensor["nan_count"], tensor["name"]) == (
        True,
        False,
        1,
        "loss",
    )
    assert gradients["params_with_nan_grad"] == same["params_with_nan_grad"] == 1
    assert gradients["nan_params"] == ["0.weight"] and gradients["params_with_inf_grad"] == 0
    assert progress_of(spool)[-1].loss == 0.5


def test_misuse_is_refused_before_training_and_told_once_within(caplog: pytest.LogCaptureFixture) -> None:
    loop = Loop()
    for wrong in (0, -1, 1.5, True, "ten"):
        with pytest.raises(ValueError, match=r"total_steps=.* must be a whole number above 0"):
            loop.run.start_training(total_steps=wrong)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="a phase needs a name"):
        loop.run.phase("").__enter__()
    for _ in range(2):
        loop.run.update_progress(loss=torch.ones(2))  # type: ignore[arg-type]
    loop.run.close()
    assert caplog.text.count("it must be a number, such as loss.item()") == 1


def test_nan_that_is_told_stays_nan(spool: Path) -> None:
    loop = Loop()
    probe.start_training(total_steps=9)
    probe.update_progress(loss=math.nan, learning_rate=math.inf)
    loop.run.close()
    probe.update_progress(loss=1.0)
    assert (progress_of(spool)[-1].loss, progress_of(spool)[-1].learning_rate) == ("NaN", "Infinity")


def test_what_only_goes_on_is_written_ever_more_rarely(monkeypatch: pytest.MonkeyPatch) -> None:
    now, step = [0.0], [0]
    board = progress_watch.ProgressBoard()
    board.start(total_epochs=None, total_steps=10**9)
    watch = progress_watch.ProgressWatch(
        board, last_step=lambda: step[0], epochs=progress_watch.EpochCount, clock=lambda: now[0]
    )
    written = 0
    for _ in range(20_000):
        now[0] += 1.0
        step[0] += 7
        written += len(watch.look())
    assert 400 < written < 1300
