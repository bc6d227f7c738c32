"""The Lightning callback with the real trainer: what is recorded, against what the module itself saw."""

import copy
import os
import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import lightning.pytorch as pl
import numpy as np
import pytest
import torch
from gradient_sums import GradientSums
from journals import Journal, read_journal
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.plugins.precision import MixedPrecision
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from probe.columns import unpack_column
from probe.integrations import lightning as integration
from probe.integrations.lightning import NanscopeCallback

pytestmark = [
    pytest.mark.filterwarnings("ignore:.isinstance.treespec, LeafSpec.. is deprecated:FutureWarning"),
    pytest.mark.filterwarnings("ignore:The '(train|val)_dataloader' does not have many workers"),
]


class Net(pl.LightningModule):
    """A small classifier that notes its own losses and gradients, apart from everything of ours."""

    def __init__(self, rate: float = 0.1) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3))
        self.rate = rate
        self.losses: list[float] = []
        self.sums = GradientSums(self)

    def loss(self, batch: Any) -> Tensor:
        inputs, targets = batch
        return F.cross_entropy(self.net(inputs), targets)

    def training_step(self, batch: Any, index: int) -> Tensor:
        loss = self.loss(batch)
        self.losses.append(loss.item())
        return loss

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=self.rate)


def batches(samples: int = 32, batch_size: int = 4) -> DataLoader[Any]:
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(samples, 6, generator=generator)
    return DataLoader(TensorDataset(inputs, torch.arange(samples) % 3), batch_size=batch_size)


def make_trainer(*callbacks: pl.Callback, **options: Any) -> pl.Trainer:
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    defaults = {"accelerator": "cpu", "max_epochs": 1, "enable_checkpointing": False, **quiet}
    return pl.Trainer(callbacks=list(callbacks), **{**defaults, **options})


def unlimited_callback() -> NanscopeCallback:
    """Nothing is left out for being dear: these models are too small for the limit."""
    return NanscopeCallback(overhead_limit=0)


def fit(model: pl.LightningModule, **options: Any) -> NanscopeCallback:
    callback = unlimited_callback()
    make_trainer(callback, **options).fit(model, batches())
    return callback


@pytest.fixture(autouse=True)
def nothing_fails(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """What a guard catches of ours would otherwise pass unseen."""
    yield
    assert "switched off" not in caplog.text


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def spool(tmp_path: Path) -> Path:
    return tmp_path / "spool"


def runs_of(spool: Path) -> list[Journal]:
    """In the order of their beginnings."""
    return sorted((read_journal(folder) for folder in spool.iterdir()), key=lambda run: run.start.incarnation)


def run_of(spool: Path) -> Journal:
    (run,) = runs_of(spool)
    return run


def norms_of(run: Journal) -> np.ndarray:
    """(steps, parameters) L2 norms of the gradients as recorded."""
    columns = [next(c for c in frame.columns if c.name == "grad_norm") for frame in run.frames]
    return np.array([unpack_column(column) for column in columns])


def scalars_of(run: Journal, name: str) -> list[float | None]:
    return [frame.scalars.get(name) for frame in run.frames]


def test_lightning_closure_is_measured_when_it_returns(spool: Path) -> None:
    model = Net()
    fit(model)
    run = run_of(spool)
    assert [frame.step for frame in run.frames] == list(range(8))
    np.testing.assert_allclose(scalars_of(run, "loss"), model.losses, rtol=1e-6)
    np.testing.assert_allclose(norms_of(run), model.sums.norms(), rtol=1e-5)


def test_lightning_names_come_from_the_lightning_module(spool: Path) -> None:
    model = Net()
    fit(model)
    (layout,) = run_of(spool).layouts
    assert [parameter.name for parameter in layout.parameters] == [
        name for name, _ in model.named_parameters()
    ]
    assert layout.parameters[0].name == "net.0.weight"


@pytest.mark.parametrize("level", ["basic", "extreme"])
def test_lightning_training_is_bit_identical_with_the_callback(level: str) -> None:
    plain, watched = Net(), Net()
    for model, callbacks in ((plain, []), (watched, [NanscopeCallback(level=level, overhead_limit=0)])):
        make_trainer(*callbacks, accumulate_grad_batches=2, gradient_clip_val=0.1).fit(model, batches())
    for name, value in plain.state_dict().items():
        assert torch.equal(value, watched.state_dict()[name]), name


def test_lightning_accumulation_is_one_step_with_the_divisor_undone(spool: Path) -> None:
    model = Net()
    fit(model, accumulate_grad_batches=4)
    run = run_of(spool)
    sums = np.reshape(model.losses, (2, 4)).sum(axis=1)
    np.testing.assert_allclose(scalars_of(run, "loss"), sums, rtol=1e-6)
    np.testing.assert_allclose(scalars_of(run, "loss_raw"), sums / 4, rtol=1e-6)
    np.testing.assert_allclose(norms_of(run), model.sums.norms(per_step=4), rtol=1e-5)


def test_lightning_accumulation_with_a_rest_ends_the_epoch_with_a_step(spool: Path) -> None:
    model = Net()
    fit(model, accumulate_grad_batches=3)
    run = run_of(spool)
    np.testing.assert_allclose(norms_of(run), model.sums.norms(per_step=3), rtol=1e-5)
    sums = [sum(model.losses[first : first + 3]) for first in (0, 3, 6)]
    np.testing.assert_allclose(scalars_of(run, "loss"), sums, rtol=1e-6)
    assert [frame.step for frame in run.frames] == [0, 1, 2]
    assert scalars_of(run, "log/global_step") == [1, 2, 3]


@pytest.mark.parametrize("algorithm", ["norm", "value"])
def test_lightning_clipped_gradients_are_measured_before_clipping(spool: Path, algorithm: str) -> None:
    model = Net()
    fit(model, gradient_clip_val=0.01, gradient_clip_algorithm=algorithm)
    run = run_of(spool)
    np.testing.assert_allclose(norms_of(run), model.sums.norms(), rtol=1e-5)
    assert {frame.stage for frame in run.frames} == {"local"}


def test_lightning_bf16_records_the_loss_and_the_gradients_of_autocast(spool: Path) -> None:
    model = Net()
    fit(model, precision="bf16-mixed")
    run = run_of(spool)
    np.testing.assert_allclose(scalars_of(run, "loss"), model.losses, rtol=1e-6)
    np.testing.assert_allclose(norms_of(run), model.sums.norms(), rtol=1e-5)


def test_lightning_scale_and_divisor_of_the_loss_are_both_undone(spool: Path) -> None:
    model = Net()
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    fit(model, plugins=[MixedPrecision("16-mixed", "cpu", scaler=scaler)], accumulate_grad_batches=4)
    run = run_of(spool)
    sums = np.reshape(model.losses, (2, 4)).sum(axis=1)
    np.testing.assert_allclose(scalars_of(run, "loss"), sums, rtol=1e-6)
    np.testing.assert_allclose(scalars_of(run, "loss_raw"), sums / 4 * 1024, rtol=1e-6)
    np.testing.assert_allclose(norms_of(run), model.sums.norms(per_step=4) / 1024, rtol=1e-5)
    assert {frame.stage for frame in run.frames} == {"unscaled"}


class Scaled(Net):
    """With an overflow in the loss's scale at the third batch, as a GradScaler meets now and then."""

    def training_step(self, batch: Any, index: int) -> Tensor:
        loss = super().training_step(batch, index)
        return loss * 1e37 if index == 2 else loss


def test_lightning_scaler_step_that_is_skipped_keeps_its_number(spool: Path) -> None:
    model = Scaled()
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    fit(model, plugins=[MixedPrecision("16-mixed", "cpu", scaler=scaler)])
    run = run_of(spool)
    assert [frame.step for frame in run.frames] == list(range(8))
    finite = [step for step in range(8) if step != 2]
    recorded = np.array(scalars_of(run, "loss"))
    np.testing.assert_allclose(recorded[finite], np.array(model.losses)[finite], rtol=1e-6)
    assert [event.kind for event in run.latest_events if event.severity == "critical"] == []


class Adversaries(pl.LightningModule):
    """A generator and a discriminator in one module, each with its optimizer, updated by hand."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.automatic_optimization = False
        self.generator, self.discriminator = nn.Linear(6, 6), nn.Linear(6, 1)
        self.losses: list[float] = []

    def training_step(self, batch: Any, index: int) -> None:
        first, second = self.optimizers()  # type: ignore[misc]
        real = batch[0]
        for optimizer, target in ((first, 1.0), (second, 0.0)):
            score = self.discriminator(self.generator(real))
            loss = F.binary_cross_entropy_with_logits(score, torch.full_like(score, target))
            optimizer.zero_grad()
            self.manual_backward(loss)
            optimizer.step()
            self.losses.append(loss.item())

    def configure_optimizers(self) -> Any:
        return (
            torch.optim.SGD(self.generator.parameters(), lr=0.5),
            torch.optim.SGD(self.discriminator.parameters(), lr=0.25),
        )


def test_lightning_manual_optimizers_of_one_batch_share_a_step(spool: Path) -> None:
    model = Adversaries()
    fit(model)
    run = run_of(spool)
    assert [frame.step for frame in run.frames] == [step for step in range(8) for _ in "gd"]
    np.testing.assert_allclose(scalars_of(run, "loss"), model.losses, rtol=1e-6)


def test_lightning_manual_training_has_an_end_in_steps_only_if_it_was_given_one(spool: Path) -> None:
    fit(Adversaries())
    fit(Adversaries(), max_steps=16)
    estimated, given = runs_of(spool)
    assert set(scalars_of(estimated, "log/max_steps")) == {None}
    assert {steps for steps in scalars_of(given, "log/max_steps") if steps is not None} == {16}
    assert scalars_of(given, "log/global_step")[-1] == 16


class Validated(Net):
    """Calls itself as a module, in training and in validation; the batch sizes differ."""

    def forward(self, inputs: Tensor) -> Tensor:
        return self.net(inputs)

    def loss(self, batch: Any) -> Tensor:
        inputs, targets = batch
        return F.cross_entropy(self(inputs), targets)

    def validation_step(self, batch: Any, index: int) -> None:
        self.log("val_loss", self.loss(batch))


@pytest.mark.parametrize("inference_mode", [True, False])
def test_lightning_validation_makes_no_step_and_counts_no_samples(spool: Path, inference_mode: bool) -> None:
    model = Validated()
    trainer = make_trainer(unlimited_callback(), val_check_interval=3, inference_mode=inference_mode)
    trainer.fit(model, batches(), batches(21, batch_size=7))
    run = run_of(spool)
    assert scalars_of(run, "samples") == [4] * 8
    np.testing.assert_allclose(scalars_of(run, "loss"), model.losses, rtol=1e-6)


def test_lightning_module_inside_is_found_as_the_called_root(spool: Path) -> None:
    fit(Net(), accumulate_grad_batches=2)
    assert scalars_of(run_of(spool), "samples") == [8] * 4


class Scheduled(Net):
    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), lr=self.rate)
        halving = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": halving, "interval": "step"}}


def test_lightning_progress_is_logged_with_the_step_it_belongs_to(spool: Path) -> None:
    fit(Scheduled(rate=1.0), max_epochs=2, accumulate_grad_batches=4)
    run = run_of(spool)
    assert scalars_of(run, "log/epoch") == [0, 0, 1, 1]
    assert scalars_of(run, "log/global_step") == [1, 2, 3, 4]
    assert scalars_of(run, "log/max_steps") == [4] * 4
    assert scalars_of(run, "lr") == [1.0, 0.5, 0.25, 0.125]


def test_lightning_endless_training_logs_no_end(spool: Path) -> None:
    class Bounded(Net):
        def on_train_batch_end(self, *batch: Any) -> None:
            self.trainer.should_stop = len(self.losses) == 10

    fit(Bounded(), max_epochs=-1)
    run = run_of(spool)
    assert scalars_of(run, "log/max_steps") == [None] * 10
    assert scalars_of(run, "log/epoch") == [0] * 8 + [1] * 2


@pytest.mark.filterwarnings("ignore:Checkpoint directory .* exists and is not empty")
def test_lightning_resumed_training_is_a_run_of_its_own(spool: Path, tmp_path: Path) -> None:
    def train(epochs: int, **start: Any) -> None:
        saver = ModelCheckpoint(dirpath=tmp_path / "saved", save_last=True)
        trainer = make_trainer(unlimited_callback(), saver, enable_checkpointing=True, max_epochs=epochs)
        trainer.fit(Net(), batches(), **start)

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
    trainer.fit(model, batches())
    trainer.fit_loop.max_epochs = 2
    trainer.fit(model, batches())
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
    make_trainer(callback, fast_dev_run=True).fit(Validated(), batches(), batches())
    run = run_of(spool)
    assert [frame.step for frame in run.frames] == [0]
    assert run.end is not None


class Poisoned(Net):
    """Takes the root of something negative in the fourth batch."""

    def loss(self, batch: Any) -> Tensor:
        inputs, targets = batch
        hidden = self.net[1](self.net[0](inputs))
        if len(self.losses) == 3:
            hidden = torch.sqrt(hidden - 1)
        return F.cross_entropy(self.net[2](hidden), targets)


def test_lightning_nan_is_found_at_its_step(spool: Path) -> None:
    model = Poisoned()
    fit(model)
    run = run_of(spool)
    (event,) = [event for event in run.latest_events if event.kind == "nonfinite_loss"]
    assert event.step == 3
    assert np.isnan(run.frames[3].scalars["loss"])


class Root(nn.Module):
    """Takes the root of something negative in its fourth call."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, inputs: Tensor) -> Tensor:
        self.calls += 1
        return torch.sqrt(inputs - 9) if self.calls == 4 else inputs


class PoisonedInside(Net):
    """The same inside the model that the module calls."""

    def __init__(self) -> None:
        super().__init__()
        self.net.insert(2, Root())


def test_lightning_origin_of_a_nan_is_named_from_the_lightning_module(spool: Path) -> None:
    fit(PoisonedInside())
    (event,) = [event for event in run_of(spool).latest_events if event.kind == "nonfinite_loss"]
    assert event.origin is not None
    assert (event.origin.op, event.origin.module) == ("sqrt", "net.2")


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
    monkeypatch.setattr(integration.torch_private, "default_store", lambda: store)
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


def test_lightning_under_its_other_name_is_recorded(spool: Path) -> None:
    command = [sys.executable, "-c", OTHER_NAME]
    finished = subprocess.run(command, env=dict(os.environ), capture_output=True, text=True, timeout=120)
    assert finished.returncode == 0, finished.stderr
    assert scalars_of(run_of(spool), "log/global_step") == [1, 2, 3, 4]


def test_lightning_documented_lines_attach(spool: Path) -> None:
    (lines,) = re.findall(r"\n\n((?:    .*\n)+)", integration.__doc__ or "")
    names: dict[str, Any] = {"Trainer": lambda callbacks: make_trainer(*callbacks)}
    exec(textwrap.dedent(lines), names)  # noqa: S102 - our own documentation
    names["trainer"].fit(Net(), batches())
    assert len(run_of(spool).frames) == 8
