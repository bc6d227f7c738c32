"""Lightning's real trainer on a small module that notes its own losses and gradients."""

from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from gradient_sums import GradientSums
from torch import Tensor
from torch.nn import functional as F
from trainer_models import make_loader, make_net

from probe.integrations.lightning import NanscopeCallback

MARKS = [
    pytest.mark.filterwarnings("ignore:.isinstance.treespec, LeafSpec.. is deprecated:FutureWarning"),
    pytest.mark.filterwarnings("ignore:The '(train|val)_dataloader' does not have many workers"),
    pytest.mark.usefixtures("one_thread", "nothing_switched_off"),
]


class Net(pl.LightningModule):
    """A small classifier that notes its own losses and gradients, apart from everything of ours."""

    def __init__(self, rate: float = 0.1, *, poisoned: bool = False) -> None:
        super().__init__()
        self.net = make_net(poisoned=poisoned)
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


class Validated(Net):
    """Calls itself as a module, in training and in validation."""

    def forward(self, inputs: Tensor) -> Tensor:
        return self.net(inputs)

    def loss(self, batch: Any) -> Tensor:
        inputs, targets = batch
        return F.cross_entropy(self(inputs), targets)

    def validation_step(self, batch: Any, index: int) -> None:
        self.log("val_loss", self.loss(batch))


def make_trainer(*callbacks: pl.Callback, **options: Any) -> pl.Trainer:
    """One quiet epoch on the CPU, if not told otherwise."""
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    defaults = {"accelerator": "cpu", "max_epochs": 1, "enable_checkpointing": False, **quiet}
    return pl.Trainer(callbacks=list(callbacks), **{**defaults, **options})


def unlimited_callback() -> NanscopeCallback:
    """Nothing is left out for being dear: these models are too small for the limit."""
    return NanscopeCallback(overhead_limit=0)


def fit(model: pl.LightningModule, **options: Any) -> NanscopeCallback:
    """Train with the callback, and return it."""
    callback = unlimited_callback()
    make_trainer(callback, **options).fit(model, make_loader())
    return callback
