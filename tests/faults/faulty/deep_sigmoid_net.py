"""Twelve sigmoid layers with the default initialisation: the first ones get gradients of 1e-12.

family: initialisation
kinds: poor_initialization, gradient_vanishing, saturated_activation
step: 0
"""

import torch
from torch import nn
from torch.nn import functional as F


class DeepNet(nn.Module):
    def __init__(self, depth, width):
        super().__init__()
        self.first = nn.Linear(16, width)
        self.hidden = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))
        self.last = nn.Linear(width, 4)

    def forward(self, x):
        x = self.first(x)
        for layer in self.hidden:
            x = torch.sigmoid(layer(x))  # FAULT
        return self.last(x)


torch.manual_seed(57)
model = DeepNet(12, 32)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(250):
    x = torch.randn(32, 16)
    loss = F.cross_entropy(model(x), x[:, :4].argmax(-1))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print("last loss", loss.item())
