"""Updates its parameters without an optimizer; prints its losses."""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(4, 2)
for _ in range(4):
    loss = model(torch.randn(3, 4)).square().mean()
    loss.backward()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter -= 0.1 * parameter.grad
            parameter.grad = None
    print(repr(loss.item()))
