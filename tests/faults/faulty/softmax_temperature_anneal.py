"""Anneals the temperature of a routing softmax linearly and reaches exactly 0 at the last tenth.

family: forward
kinds: nonfinite_loss
step: 90
module: router
"""

import torch
from torch import nn
from torch.nn import functional as F


class Router(nn.Module):
    def __init__(self, width, choices):
        super().__init__()
        self.score = nn.Linear(width, choices, bias=False)
        self.temperature = 1.0

    def forward(self, x):
        sharpened = self.score(x) / self.temperature  # FAULT
        return torch.softmax(sharpened, dim=-1)  # ORIGIN


class RoutedNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.router = Router(6, 4)
        self.experts = nn.ModuleList(nn.Linear(6, 2) for _ in range(4))

    def forward(self, x):
        weights = self.router(x)
        outputs = torch.stack([expert(x) for expert in self.experts], dim=-1)
        return (outputs * weights[:, None, :]).sum(-1)


torch.manual_seed(33)
model = RoutedNet()
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
for step in range(100):
    model.router.temperature = max(0.0, 1.0 - step / 90)
    x = torch.randn(24, 6)
    loss = F.mse_loss(model(x), x[:, :2] * x[:, 2:4].sign())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print("last loss", loss.item())
