"""A loss made in the `compute_loss` of a Hugging Face trainer, which has returned: its line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from run_numbers import run_of
from torch import Tensor, nn
from transformers import Trainer, TrainingArguments

from probe.integrations.huggingface import NanscopeCallback

pytestmark = pytest.mark.usefixtures("one_thread", "nothing_switched_off")


class Linear(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x)


class MaskedTrainer(Trainer):
    """The mean over the items that are not masked."""

    def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False, **others: Any) -> Any:
        logits = model(inputs["x"])
        losses = nn.functional.cross_entropy(logits, inputs["labels"], reduction="none")
        loss = (losses * inputs["mask"]).sum() / inputs["mask"].sum()  # FAULT
        return (loss, logits) if return_outputs else loss


def samples(masked: range) -> list[dict[str, Any]]:
    torch.manual_seed(1)
    return [{"x": torch.randn(4), "labels": n % 3, "mask": 0.0 if n in masked else 1.0} for n in range(64)]


class InOrder(MaskedTrainer):
    def _get_train_sampler(self, *args: Any, **options: Any) -> Any:
        return torch.utils.data.SequentialSampler(self.train_dataset)  # type: ignore[arg-type]


@pytest.mark.parametrize(("accumulated", "step"), [(1, 5), (2, 2)])
def test_line_in_compute_loss_is_found(accumulated: int, step: int, tmp_path: Path, spool: Path) -> None:
    torch.manual_seed(0)
    options = TrainingArguments(
        output_dir=str(tmp_path / "out"),
        per_device_train_batch_size=8,
        gradient_accumulation_steps=accumulated,
        num_train_epochs=1,
        report_to=[],
        disable_tqdm=True,
        save_strategy="no",
        use_cpu=True,
        remove_unused_columns=False,
    )
    trainer = InOrder(
        model=Linear(), args=options, train_dataset=samples(range(40, 48)), callbacks=[NanscopeCallback()]
    )
    trainer.train()
    event = next(event for event in run_of(spool).latest_events if event.kind == "nonfinite_loss")

    assert event.origin is not None, event.message
    assert (event.step, event.origin.phase, event.origin.op) == (step, "loss", "div"), event.message
    assert event.stacks.forward[-1].file == __file__, event.message
    assert Path(__file__).read_text().splitlines()[event.stacks.forward[-1].line - 1].endswith("# FAULT")
