"""The Lightning callback with the real trainer: what is recorded, against what the module itself saw."""

from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import numpy as np
import pytest
import torch
from lightning.pytorch.plugins.precision import MixedPrecision
from lightning_training import MARKS, Net, Validated, fit, make_trainer, unlimited_callback
from progress_documents import progress_of
from run_numbers import norms_of, run_of, runs_of, scalars_of, steps_of
from torch import Tensor, nn
from torch.nn import functional as F
from trainer_models import make_loader

from probe.integrations.lightning import NanscopeCallback

pytestmark = MARKS


def test_lightning_closure_is_measured_when_it_returns(spool: Path) -> None:
    model = Net()
    fit(model)
    run = run_of(spool)
    assert steps_of(run) == list(range(8))
    np.testing.assert_allclose(scalars_of(run, "loss"), model.losses, rtol=1e-6)
    np.testing.assert_allclose(norms_of(run), model.sums.norms(), rtol=1e-5)


@pytest.mark.capability(63, 66)
def test_lightning_progress_is_that_of_the_trainer(spool: Path) -> None:
    fit(Net(), max_epochs=3)
    last = progress_of(spool)[-1]
    assert (last.step, last.total_steps, last.is_estimate) == (24, 24, False)
    assert (last.epoch, last.total_epochs, last.phase, last.ended) == (3.0, 3, "training", True)


def test_lightning_names_come_from_the_lightning_module(spool: Path) -> None:
    model = Net()
    fit(model)
    layout = run_of(spool).layouts[-1]
    assert [parameter.name for parameter in layout.parameters] == [
        name for name, _ in model.named_parameters()
    ]
    assert layout.parameters[0].name == "net.0.weight"


@pytest.mark.parametrize("level", ["basic", "extreme"])
def test_lightning_training_is_bit_identical_with_the_callback(level: str) -> None:
    plain, watched = Net(), Net()
    for model, callbacks in ((plain, []), (watched, [NanscopeCallback(level=level, overhead_limit=0)])):
        make_trainer(*callbacks, accumulate_grad_batches=2, gradient_clip_val=0.1).fit(model, make_loader())
    for name, value in plain.state_dict().items():
        assert torch.equal(value, watched.state_dict()[name]), name


def test_lightning_accumulation_is_one_step_with_the_divisor_undone(spool: Path) -> None:
    model = Net()
    fit(model, accumulate_grad_batches=4)
    run = run_of(spool)
    assert steps_of(run) == [0, 1]
    means = np.reshape(model.losses, (2, 4)).mean(axis=1)
    np.testing.assert_allclose(scalars_of(run, "loss"), means, rtol=1e-6)
    np.testing.assert_allclose(scalars_of(run, "loss_raw"), means, rtol=1e-6)
    np.testing.assert_allclose(norms_of(run), model.sums.norms(per_step=4), rtol=1e-5)


def test_lightning_accumulation_with_a_rest_ends_the_epoch_with_a_step(spool: Path) -> None:
    model = Net()
    fit(model, accumulate_grad_batches=3)
    run = run_of(spool)
    np.testing.assert_allclose(norms_of(run), model.sums.norms(per_step=3), rtol=1e-5)
    means = [np.mean(model.losses[first : first + 3]) for first in (0, 3, 6)]
    np.testing.assert_allclose(scalars_of(run, "loss"), means, rtol=1e-6)
    assert steps_of(run) == [0, 1, 2]
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
    assert steps_of(run) == list(range(8))
    np.testing.assert_allclose(scalars_of(run, "loss"), model.losses, rtol=1e-6)
    np.testing.assert_allclose(norms_of(run), model.sums.norms(), rtol=1e-5)


def test_lightning_scale_and_divisor_of_the_loss_are_both_undone(spool: Path) -> None:
    model = Net()
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    fit(model, plugins=[MixedPrecision("16-mixed", "cpu", scaler=scaler)], accumulate_grad_batches=4)
    run = run_of(spool)
    means = np.reshape(model.losses, (2, 4)).mean(axis=1)
    np.testing.assert_allclose(scalars_of(run, "loss"), means, rtol=1e-6)
    np.testing.assert_allclose(scalars_of(run, "loss_raw"), means * 1024, rtol=1e-6)
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
    assert steps_of(run) == list(range(8))
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
    assert steps_of(run) == [step for step in range(8) for _ in "gd"]
    np.testing.assert_allclose(scalars_of(run, "loss"), model.losses, rtol=1e-6)


def test_lightning_manual_training_has_an_end_in_steps_only_if_it_was_given_one(spool: Path) -> None:
    fit(Adversaries())
    fit(Adversaries(), max_steps=16)
    estimated, given = runs_of(spool)
    assert set(scalars_of(estimated, "log/max_steps")) == {None}
    assert {steps for steps in scalars_of(given, "log/max_steps") if steps is not None} == {16}
    assert scalars_of(given, "log/global_step")[-1] == 16


@pytest.mark.parametrize("inference_mode", [True, False])
def test_lightning_validation_makes_no_step_and_counts_no_samples(spool: Path, inference_mode: bool) -> None:
    model = Validated()
    trainer = make_trainer(unlimited_callback(), val_check_interval=3, inference_mode=inference_mode)
    trainer.fit(model, make_loader(), make_loader(21, batch_size=7))
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
    assert scalars_of(run, "epoch") == [None, 1, None, 2]
    assert scalars_of(run, "lr") == [1.0, 0.5, 0.25, 0.125]


def test_lightning_endless_training_logs_no_end(spool: Path) -> None:
    class Bounded(Net):
        def on_train_batch_end(self, *batch: Any) -> None:
            self.trainer.should_stop = len(self.losses) == 10

    fit(Bounded(), max_epochs=-1)
    run = run_of(spool)
    assert scalars_of(run, "log/max_steps") == [None] * 10
    assert scalars_of(run, "log/epoch") == [0] * 8 + [1] * 2


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


def test_lightning_origin_of_a_nan_is_named_from_the_lightning_module(spool: Path) -> None:
    fit(Net(poisoned=True))
    (event,) = [event for event in run_of(spool).latest_events if event.kind == "nonfinite_loss"]
    assert event.origin is not None
    assert (event.origin.op, event.origin.module) == ("sqrt", "net.2")
