"""Makes new optimizers for a model all the time, as k-fold, test-time adaptation and federated clients do."""

import gc
import sys

import torch
from torch import nn


def update(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int = 3) -> None:
    for _ in range(steps):
        x = torch.randn(4, 8)
        loss = model(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


searches = []
"""Each search of all objects in the process, whoever makes it."""


def get_objects(generation: int | None = None) -> list[object]:
    if generation in (None, 2):
        searches.append(generation)
    return real(generation)


real, gc.get_objects = gc.get_objects, get_objects
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
clients = [nn.Linear(8, 2), nn.Linear(8, 1)]
for client in clients:
    update(client, torch.optim.SGD(client.parameters(), lr=0.1))
update(model, torch.optim.Adam(model.parameters()))
before = len(searches)
for _ in range(20):
    update(model, torch.optim.Adam(model.parameters()), steps=1)
    update(model, torch.optim.SGD(model[1].parameters(), lr=0.01), steps=1)
    for client in clients:
        update(client, torch.optim.SGD(client.parameters(), lr=0.1), steps=2)
print(f"the last weight is {model[2].weight[0, 0].item()!r}")
print(f"searched {before} times, then {len(searches) - before} times", file=sys.stderr)
