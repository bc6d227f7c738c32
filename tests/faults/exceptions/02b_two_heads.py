import torch
from torch import nn
from torch.nn import functional as F
class TwoHeads(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(12, 24), nn.Tanh())
        self.color = nn.Linear(24, 3)
        self.shape = nn.Linear(24, 5)

    def forward(self, x):
        features = self.trunk(x)
        return self.color(features), self.shape(features)

model = TwoHeads()
colors, shapes = model(torch.randn(16, 12))
color_loss = F.cross_entropy(colors, torch.randint(0, 3, (16,)))
shape_loss = F.cross_entropy(shapes, torch.randint(0, 5, (16,)))
color_loss.backward()
shape_loss.backward()
