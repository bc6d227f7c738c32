"""A plain loop: an MLP of eight tensors, Adam."""

import torch
from torch import nn

STEPS = 600


def train(steps, watch, tick):
    model = nn.Sequential(
        *[nn.Sequential(nn.Linear(256, 256), nn.ReLU()) for _ in range(3)], nn.Linear(256, 10)
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    x, y = torch.randn(32, 16, 256), torch.randint(10, (32, 16))
    loss_function = nn.CrossEntropyLoss()
    watch(model, optimizer)
    for step in range(steps):
        optimizer.zero_grad()
        loss = loss_function(model(x[step % 32]), y[step % 32])
        loss.backward()
        optimizer.step()
        tick()
    return [model]
