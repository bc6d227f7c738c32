"""Lightning: automatic optimisation (a closure), clipping, the loss a module within the model."""

import logging
import warnings

import lightning
import torch
from torch import nn

STEPS = 200


class Model(lightning.LightningModule):
    def __init__(self, tick):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 8)
        )
        self.criterion = nn.CrossEntropyLoss()
        self.optimizer = torch.optim.Adam(self.layers.parameters(), lr=1e-3)
        self.tick = tick

    def training_step(self, batch, index):
        x, y = batch
        return self.criterion(self.layers(x), y)

    def on_train_batch_end(self, *args):
        self.tick()

    def configure_optimizers(self):
        return self.optimizer


def train(steps, watch, tick):
    warnings.simplefilter("ignore")
    for name in ("lightning.pytorch", "lightning"):
        logging.getLogger(name).setLevel(logging.ERROR)
    model = Model(tick)
    data = torch.utils.data.TensorDataset(torch.randn(320, 64), torch.randint(8, (320,)))
    loader = torch.utils.data.DataLoader(data, batch_size=16)
    trainer = lightning.Trainer(
        max_steps=steps,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        gradient_clip_val=1.0,
    )
    watch(model, model.optimizer)
    trainer.fit(model, loader)
    return [model]
