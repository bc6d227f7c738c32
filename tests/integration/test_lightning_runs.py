"""The Lightning callback with the real trainer: how a run begins and ends, and what else is asked of it."""

import copy
import json
import re
import textwrap
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from forked_scripts import ForkedScripts
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning_training import MARKS, Net, Validated, fit, make_trainer, unlimited_callback
from run_numbers import run_of, runs_of, scalars_of, steps_of
from torch import Tensor
from trainer_models import make_loader

from probe.integrations import lightning as integration
from probe.integrations.lightning import NanscopeCallback

pytestmark = MARKS


@pytest.mark.filterwarnings("ignore:Checkpoint directory .* exists and is not empty")
def test_lightning_resumed_training_is_a_run_of_its_own(spool: Path, tmp_path: Path) -> None:
    def train(epochs: int, **start: Any) -> None:
        saver = ModelCheckpoint(dirpath=tmp_path / "saved", save_last=True)
        trainer = make_trainer(unlimited_callback(), saver, enable_checkpointing=True, max_epochs=epochs)
        trainer.fit(Net(), make_loader(), **start)

    last = tmp_path / "saved" / "last.ckpt"
    train(1)
    assert not [name for name in torch.load(last, weights_only=False)["callbacks"] if "Nanscope" in name]
    train(2, ckpt_path=last, weights_only=False)
    before, after = runs_of(spool)
    assert [frame.step for frame in before.frames] == [frame.step for frame in after.frames] == list(range(8))
    assert scalars_of(after, "log/global_step") == list(range(9, 17))


def test_lightning_fit_twice_makes_two_finished_runs(spool: Path) -> None:
    callback, model = unlimited_callback(), Net()
    trainer = make_trainer(callback)
    trainer.fit(model, make_loader())
    trainer.fit_loop.max_epochs = 2
    trainer.fit(model, make_loader())
    first, second = runs_of(spool)
    assert [run.end and run.end.outcome for run in (first, second)] == ["finished", "finished"]
    np.testing.assert_allclose(
        scalars_of(first, "loss") + scalars_of(second, "loss"), model.losses, rtol=1e-6
    )
    assert callback.run is not None
    assert callback.run.run == second.start.run


class Failing(Net):
    def __init__(self, error: BaseException) -> None:
        super().__init__()
        self.error = error

    def training_step(self, batch: Any, index: int) -> Tensor:
        if index == 3:
            raise self.error
        return super().training_step(batch, index)


def test_lightning_exception_is_recorded_and_raised(spool: Path) -> None:
    with pytest.raises(RuntimeError, match="no more data"):
        fit(Failing(RuntimeError("no more data")))
    run = run_of(spool)
    (event,) = [event for event in run.latest_events if event.kind == "exception"]
    assert "no more data" in event.message
    assert (event.step, run.end and run.end.outcome) == (3, "exception")


def test_lightning_keyboard_interrupt_finishes_the_run(spool: Path) -> None:
    with pytest.raises(SystemExit):  # Lightning's own way to end
        fit(Failing(KeyboardInterrupt()))
    run = run_of(spool)
    assert run.end is not None
    assert (run.end.outcome, run.end.step, run.latest_events) == ("finished", 2, [])


def test_lightning_fast_dev_run_records_its_batch(spool: Path) -> None:
    callback = unlimited_callback()
    make_trainer(callback, fast_dev_run=True).fit(Validated(), make_loader(), make_loader())
    run = run_of(spool)
    assert steps_of(run) == [0]
    assert run.end is not None


def test_lightning_callback_that_is_switched_off_does_nothing(
    spool: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NANSCOPE_OFF", "1")
    callback = fit(Net())
    assert callback.run is not None
    assert not callback.run.active
    assert not spool.exists()


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> torch.distributed.HashStore:
    """A key-value store as the ranks of a process group share it."""
    store = torch.distributed.HashStore()
    monkeypatch.setattr(integration.torch_ranks, "default_store", lambda: store)
    monkeypatch.setattr(integration, "_PATIENCE", timedelta(milliseconds=50))
    return store


def rank(number: int) -> SimpleNamespace:
    """What is asked of a trainer for the run id."""
    return SimpleNamespace(world_size=2, global_rank=number)


def test_lightning_ranks_agree_on_the_run_id(store: torch.distributed.HashStore) -> None:
    runs = [integration._run_of_ranks(rank(number)) for number in (0, 1)]
    assert runs[0] is not None
    assert runs[0] == runs[1]


def test_lightning_rank_without_a_first_rank_takes_an_id_of_its_own(
    store: torch.distributed.HashStore,
) -> None:
    assert integration._run_of_ranks(rank(1)) is None


def test_lightning_copy_of_the_callback_has_no_session() -> None:
    callback = fit(Net())
    assert callback.run is not None
    assert copy.deepcopy(callback).run is None


def test_lightning_option_out_of_range_raises_at_once() -> None:
    with pytest.raises(ValueError, match="max_replays"):
        NanscopeCallback(max_replays=-1)


OTHER_NAME = """
import pytorch_lightning as pl, torch
from probe.integrations.lightning import NanscopeCallback
assert issubclass(NanscopeCallback, pl.Callback)

class Net(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Linear(4, 1)

    def training_step(self, batch, index):
        return self.net(batch).square().mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)

trainer = pl.Trainer(accelerator="cpu", fast_dev_run=4, callbacks=[NanscopeCallback()])
trainer.fit(Net(), torch.utils.data.DataLoader(torch.ones(8, 4), batch_size=2))
"""


def test_lightning_under_its_other_name_is_recorded(spool: Path, forked: ForkedScripts) -> None:
    code, _, errors = forked.start(["-c", OTHER_NAME], spool.parent).finish()
    assert code == 0, errors
    assert scalars_of(run_of(spool), "log/global_step") == [1, 2, 3, 4]


def test_lightning_documented_lines_attach(spool: Path) -> None:
    (lines,) = re.findall(r"\n\n((?:    .*\n)+)", integration.__doc__ or "")
    names: dict[str, Any] = {"Trainer": lambda callbacks: make_trainer(*callbacks)}
    exec(textwrap.dedent(lines), names)  # noqa: S102 - our own documentation
    names["trainer"].fit(Net(), make_loader())
    assert len(run_of(spool).frames) == 8


def test_lightning_callback_writes_the_report_that_it_is_asked_for(tmp_path: Path) -> None:
    make_trainer(NanscopeCallback(report=tmp_path / "end.json")).fit(Net(), make_loader())
    report = json.loads((tmp_path / "end.json").read_text())
    assert [step["step"] for step in report["steps"]] == list(range(8))
