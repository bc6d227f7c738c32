"""Predicts a heading as atan(y / x); where a mask has set both outputs to 0 it is 0/0.

family: forward
kinds: nonfinite_loss
step: 41
module: ""
"""

import torch
from torch import nn


class Heading(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(8, 32), nn.ReLU())
        self.sine = nn.Linear(32, 1)
        self.cosine = nn.Linear(32, 1)

    def forward(self, features, visible):
        hidden = self.body(features)
        y = self.sine(hidden).squeeze(-1) * visible
        x = self.cosine(hidden).squeeze(-1) * visible
        return torch.atan(y / x)  # FAULT


torch.manual_seed(26)
model = Heading()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for step in range(100):
    features = torch.randn(16, 8)
    truth = torch.atan(features[:, 0])
    visible = torch.ones(16)
    if step == 41:
        visible[3] = 0.0
    error = (model(features, visible) - truth) * visible
    loss = error.square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print("last loss", loss.item())
