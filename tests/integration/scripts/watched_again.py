"""Watches each copy of a model anew, in one line: not closed, under two names, and closed each time."""

import copy

import torch
from torch import nn

import probe


class Copied(nn.Linear): ...


class Named(nn.Linear): ...


class Closed(nn.Linear): ...


def train(net, name=None, *, is_closed=False):
    fast = copy.deepcopy(net)
    optimizer = torch.optim.SGD(fast.parameters(), lr=0.1)
    run = probe.watch(fast, optimizer, name=name)
    for _ in range(3):
        loss = fast(torch.ones(8, 4)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(type(net).__name__, run.run)
    if is_closed:
        run.close()


net = Copied(4, 2)
for _ in range(4):
    train(net)
net = Named(4, 2)
for name in ("one", "other", "one", "other"):
    train(net, name)
net = Closed(4, 2)
for _ in range(2):
    train(net, is_closed=True)
