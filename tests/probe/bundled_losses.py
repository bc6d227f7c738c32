"""Training loops that make their loss in several ways. Not in a test file, whose code pytest rewrites."""

import math

import torch
from torch import nn
from torch.nn import functional as F

FAILS_AT = 3
SHIFT = torch.tensor([0.25, 0.5, 1.0])


def build():
    return nn.Sequential(nn.Linear(4, 5), nn.Dropout(0.2), nn.Linear(5, 3))


def target_of(step):
    values = torch.rand(16, 3)
    values[2, 1] = math.inf if step == FAILS_AT else 0.5
    return values


def distance(one, other):
    return (one - other).square().mean()


def with_loss_module(model, update):
    criterion = nn.BCEWithLogitsLoss(pos_weight=torch.tensor([1.0, 2.0, 3.0]))
    for step in range(FAILS_AT + 1):
        x, target = torch.randn(16, 4), target_of(step)
        loss = criterion(model(x), target)
        loss.backward()
        update()


def with_several_calls(model, update):
    for step in range(FAILS_AT + 1):
        x, target = torch.randn(2, 16, 4), target_of(step)
        parts = []
        for part in x:
            output = model(part) + SHIFT
            parts.append(F.mse_loss(output, target))
        loss = sum(parts) / len(parts)
        loss.backward()
        update()


def with_accumulation(model, update):
    for step in range(FAILS_AT + 1):
        for half in range(2):
            x, target = torch.randn(16, 4), target_of(step if half else 0)
            loss = F.mse_loss(model(x), target)
            loss.backward()
        update()


def with_function_of_the_module(model, update):
    for step in range(FAILS_AT + 1):
        x, target = torch.randn(16, 4), target_of(step)
        loss = distance(model(x), target)
        loss.backward()
        update()


def with_function_of_its_own(model, update):
    def penalty(values):
        return values.square().mean()

    for step in range(FAILS_AT + 1):
        x, target = torch.randn(16, 4), target_of(step)
        loss = penalty(model(x) - target)
        loss.backward()
        update()
