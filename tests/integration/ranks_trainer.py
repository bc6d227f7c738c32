"""A script that trains on two processes with a trainer of choice: `ranks_trainer.py lightning|huggingface`.

Lightning starts the second process itself; `torchrun` starts both for Hugging Face.
"""

import sys
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, DistributedSampler
from trainer_models import make_data, make_net

BATCH_SIZE = 4
STEPS = 4
RATE = 0.1


class Wrapped(nn.Module):
    """As the Hugging Face trainer wants a model: with the loss inside, and keywords."""

    def __init__(self) -> None:
        super().__init__()
        self.net = make_net(poisoned=True)

    def forward(self, inputs: Tensor, labels: Tensor) -> dict[str, Tensor]:
        logits = self.net(inputs)
        return {"loss": F.cross_entropy(logits, labels), "logits": logits}


def train_with_lightning() -> None:
    import lightning.pytorch as pl

    from probe.integrations.lightning import NanscopeCallback

    class Net(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = make_net(poisoned=True)

        def training_step(self, batch: Any, index: int) -> Tensor:
            return F.cross_entropy(self.net(batch[0]), batch[1])

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=RATE)

        def train_dataloader(self) -> Any:
            data = make_data()
            # The trainer's own sampler would shuffle.
            return DataLoader(data, BATCH_SIZE, sampler=DistributedSampler(data, shuffle=False))

    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    ranks = {"accelerator": "cpu", "devices": 2, "strategy": "ddp", "use_distributed_sampler": False}
    callbacks = [NanscopeCallback(overhead_limit=0)]
    trainer = pl.Trainer(max_epochs=1, enable_checkpointing=False, callbacks=callbacks, **ranks, **quiet)
    trainer.fit(Net())


def train_with_huggingface() -> None:
    from transformers import Trainer, TrainingArguments

    from probe.integrations.huggingface import NanscopeCallback

    rows = [{"inputs": row, "labels": label} for row, label in make_data()]
    arguments = TrainingArguments(
        output_dir="out",
        use_cpu=True,
        per_device_train_batch_size=BATCH_SIZE,
        num_train_epochs=1,
        train_sampling_strategy="sequential",
        optim="sgd",
        learning_rate=RATE,
        lr_scheduler_type="constant",
        max_grad_norm=0.0,
        report_to=[],
        save_strategy="no",
        disable_tqdm=True,
    )
    Trainer(Wrapped(), arguments, train_dataset=rows, callbacks=[NanscopeCallback(overhead_limit=0)]).train()


if __name__ == "__main__":
    torch.set_num_threads(1)
    train_with_lightning() if sys.argv[1] == "lightning" else train_with_huggingface()
