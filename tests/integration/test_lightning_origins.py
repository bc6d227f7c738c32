"""A loss made in `training_step`, which has returned: its line; what Lightning logged counts once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from lightning import LightningModule
from lightning_training import MARKS, make_trainer, unlimited_callback
from run_numbers import run_of
from torch import Tensor, nn
from torch.utils.data import DataLoader

pytestmark = MARKS
BAD = 5


class Divides(LightningModule):
    """Logs by step and by epoch, counts, and keeps what it has seen."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.1), nn.Linear(8, 3))
        self.count, self.seen = 0, list[float]()

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        x, parts = batch
        out = self.net(x)
        self.count += 1
        loss = out.mean() / parts[0]  # FAULT
        self.seen.append(float(x.sum()))
        self.log("inputs", x.sum(), on_step=True, on_epoch=True)
        self.log_dict({"first": x[0, 0], "out": out.detach().abs().mean()}, on_epoch=True)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.01)


class Scaled(Divides):
    """Returns a dictionary, as `training_step` may."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:  # type: ignore[override]
        return {"loss": super().training_step(batch, batch_idx)}


def trained(make: type[Divides], *callbacks: Any) -> tuple[Divides, dict[str, float]]:
    torch.manual_seed(0)
    model = make()
    data = [(torch.randn(4), torch.tensor(0.0 if n // 8 == BAD else 1.0)) for n in range(64)]
    trainer = make_trainer(*callbacks)
    trainer.fit(model, DataLoader(data, batch_size=8))
    logged = {name: float(value) for name, value in trainer.callback_metrics.items() if "out" not in name}
    return model, logged


@pytest.mark.parametrize("make", [Divides, Scaled])
def test_line_of_the_loss_is_found_and_all_is_as_without_a_replay(make: type[Divides], spool: Path) -> None:
    plain, plain_log = trained(make)
    watched, watched_log = trained(make, unlimited_callback())
    event = next(event for event in run_of(spool).latest_events if event.kind == "nonfinite_loss")

    assert event.origin is not None, event.message
    assert (event.step, event.origin.phase, event.origin.op) == (BAD, "loss", "div")
    own = [frame for frame in event.stacks.forward if frame.file == __file__]
    assert Path(__file__).read_text().splitlines()[own[-1].line - 1].endswith("# FAULT")
    assert (watched.count, watched.seen) == (plain.count, plain.seen)
    assert watched_log == plain_log and watched_log
    assert not {"log", "log_dict"} & watched.__dict__.keys()
    for one, other in zip(watched.parameters(), plain.parameters(), strict=True):
        assert torch.equal(one.isnan(), other.isnan())
