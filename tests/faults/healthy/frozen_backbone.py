"""Trains a head on a frozen backbone in train mode: most parameters never change.

family: healthy
steps: 500
tempts: parameter_not_updated, zero_gradient
"""

import torch
from torch import nn
from torch.nn import functional as F


class Transfer(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Conv2d(8, 16, 3), nn.ReLU())
        self.backbone.requires_grad_(False)
        self.head = nn.Linear(16, 4)

    def forward(self, image):
        return self.head(self.backbone(image).mean((2, 3)))


torch.manual_seed(11)
model = Transfer()
optimizer = torch.optim.Adam((p for p in model.parameters() if p.requires_grad), lr=5e-3)
for _ in range(500):
    image = torch.rand(16, 1, 8, 8)
    label = (image[:, 0, :4].mean((1, 2)) * 16 - 6).round().clamp(0, 3).long()
    loss = F.cross_entropy(model(image), label)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print("last loss", loss.item())
