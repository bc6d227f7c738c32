"""Trains models at the same time, each in a thread; half have their optimizer from the main thread."""

import threading
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import nn

THREADS = 4
STEPS = 25


def make_model(number: int) -> nn.Module:
    return nn.Sequential(nn.Linear(8, 4 + number), nn.ReLU(), nn.Linear(4 + number, 1))


def train(number: int, model: nn.Module, optimizer: torch.optim.Optimizer | None) -> float:
    together.wait()
    if optimizer is None:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    generator = torch.Generator().manual_seed(number)
    for _ in range(STEPS):
        x = torch.randn(16, 8, generator=generator)
        loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return loss.item()


torch.manual_seed(0)
together = threading.Barrier(THREADS)
models = [make_model(number) for number in range(THREADS)]
optimizers = [torch.optim.SGD(model.parameters(), lr=0.05) for model in models[::2]]
with ThreadPoolExecutor(THREADS) as pool:
    losses = pool.map(train, range(THREADS), models, [optimizers[0], None, optimizers[1], None])
    print(*losses)
