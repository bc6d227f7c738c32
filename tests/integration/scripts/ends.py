"""Trains two steps, then ends in the way that its argument says."""

import logging
import os
import signal
import sys

import torch
from torch import nn


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x)


logging.basicConfig(stream=sys.stdout, level=logging.INFO)
model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(2):
    model(torch.ones(3, 4)).sum().backward()
    optimizer.step()
print("trained", flush=True)
match sys.argv[1]:
    case "forward":
        model(torch.ones(3, 5))
    case "first_forward":
        other = Net()
        torch.optim.SGD(other.parameters(), lr=0.1)
        other(torch.ones(3, 5))
    case "chained":
        try:
            model(torch.ones(3, 5))
        except RuntimeError as error:
            raise ValueError("the batch is odd") from error
    case "optimizer":
        torch.optim.SGD([], lr=0.1)
    case "backward":
        model(torch.ones(3, 4)).backward()
    case "exit":
        sys.exit(3)
    case "message":
        sys.exit("gave up")
    case "interrupt":
        os.kill(os.getpid(), signal.SIGINT)
    case "interrupt_with_hook":
        sys.excepthook = lambda kind, *_: print(kind.__name__, file=sys.stderr)
        os.kill(os.getpid(), signal.SIGINT)
    case "terminate":
        os.kill(os.getpid(), signal.SIGTERM)
    case "nan":
        (model(torch.ones(3, 4)).sum() * float("nan")).backward()
        optimizer.step()
