"""Models made one after the other by one line, and models that are trained at the same time."""

import contextlib
import copy

import torch
from torch import nn

torch.manual_seed(0)


class Inner(nn.Linear): ...


class Fold(nn.Linear): ...


class Trial(nn.Sequential): ...


class Client(nn.Linear): ...


class Lasting(nn.Linear): ...


class Twin(nn.Linear): ...


class Late(nn.Linear): ...


def step(model, optimizer):
    loss = model(torch.randn(8, 4)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(type(model).__name__, loss.item())


def inner_copies():
    net = Inner(4, 2)
    for _ in range(3):
        fast = copy.deepcopy(net)
        optimizer = torch.optim.SGD(fast.parameters(), lr=0.1)
        for _ in range(3):
            step(fast, optimizer)


def folds():
    kept = []
    for _ in range(3):
        model = Fold(4, 2)
        optimizer = torch.optim.Adam(model.parameters())
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2)
        for _ in range(2):
            step(model, optimizer)
            schedule.step()
        kept.append((model, schedule))


def objective(width):
    model = Trial(nn.Linear(4, width), nn.Linear(width, 1))
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(2):
        step(model, optimizer)
    if width == 3:
        raise ValueError("pruned")


def trials():
    for width in (2, 3, 4):
        with contextlib.suppress(ValueError):
            objective(width)


def clients_made_anew():
    server = Client(4, 2)
    for _ in range(2):
        clients = [copy.deepcopy(server) for _ in range(2)]
        for client in clients:
            optimizer = torch.optim.SGD(client.parameters(), lr=0.1)
            for _ in range(2):
                step(client, optimizer)


def clients_that_last():
    clients = [Lasting(4, 2) for _ in range(2)]
    for _ in range(2):
        for client in clients:
            optimizer = torch.optim.SGD(client.parameters(), lr=0.1)
            for _ in range(2):
                step(client, optimizer)


def in_turn():
    twins = [Twin(4, 2) for _ in range(2)]
    optimizers = [torch.optim.SGD(twin.parameters(), lr=0.1) for twin in twins]
    for _ in range(3):
        for twin, optimizer in zip(twins, optimizers, strict=True):
            step(twin, optimizer)


def later_in_turn():
    made = []
    for number in range(3):
        model = Late(4, 2)
        made.append((model, torch.optim.SGD(model.parameters(), lr=0.1)))
        for _ in range(2):
            step(*made[-1])
        if number == 1:
            step(*made[0])


for kind in (inner_copies, folds, trials, clients_made_anew, clients_that_last, in_turn, later_in_turn):
    kind()
