"""skorch: a closure for each update, a validation after each epoch."""

import numpy as np
import torch
from skorch import NeuralNetClassifier
from skorch.callbacks import Callback
from torch import nn

STEPS = 120


class Tick(Callback):
    def __init__(self, tick):
        self.tick = tick

    def on_grad_computed(self, *args, **kwargs):
        self.tick()


def train(steps, watch, tick):
    generator = np.random.default_rng(7)
    x = generator.normal(size=(160, 16)).astype(np.float32)
    y = (x.sum(1) > 0).astype(np.int64)
    module = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 2))
    net = NeuralNetClassifier(
        module,
        criterion=nn.CrossEntropyLoss,
        optimizer=torch.optim.Adam,
        batch_size=16,
        max_epochs=steps // 8,
        verbose=0,
        callbacks=[("tick", Tick(tick))],
    )
    net.initialize()
    watch(net.module_, net.optimizer_)
    net.partial_fit(x, y)
    return [net.module_]
