"""A binary mask learned with sharp sigmoid gates and a hard threshold: saturation is the aim.

family: healthy
steps: 500
tempts: saturated_activation, gradient_vanishing, zero_gradient
"""

import torch
from torch import nn
from torch.nn import functional as F


class FeatureSelector(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.logits = nn.Parameter(torch.zeros(features))
        self.gate = nn.Sigmoid()
        self.head = nn.Linear(features, 1)

    def forward(self, x, sharpness):
        return self.head(x * self.gate(self.logits * sharpness)).squeeze(-1)


torch.manual_seed(44)
model = FeatureSelector(16)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for step in range(500):
    x = torch.randn(64, 16)
    y = x[:, 0] - 2 * x[:, 3] + x[:, 7]
    sharpness = 1 + step / 50
    loss = F.mse_loss(model(x, sharpness), y) + 0.002 * torch.sigmoid(model.logits * sharpness).sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print("last loss", loss.item())
