"""Binary classifier with one output and a softmax over it: always 1, with a gradient of exactly 0.

family: wiring
kinds: zero_gradient, output_degenerate, parameter_not_updated
step: 0
"""

import torch
from torch import nn
from torch.nn import functional as F


class Detector(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(14, 40), nn.ReLU())
        self.head = nn.Linear(40, 1)

    def forward(self, x):
        return F.softmax(self.head(self.body(x)), dim=-1)  # FAULT


torch.manual_seed(74)
model = Detector()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for _ in range(220):
    x = torch.randn(32, 14)
    target = (x[:, :1] > 0).float()
    loss = F.mse_loss(model(x), target)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print("last loss", loss.item())
