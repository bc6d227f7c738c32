"""Fine-tuning replaces the classifier after the optimizer was made: the new head is never updated.

family: optimisation
kinds: parameter_not_updated
step: 0
"""

import torch
from torch import nn
from torch.nn import functional as F


class Backbone(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(18, 48), nn.GELU(), nn.Linear(48, 48), nn.GELU())
        self.head = nn.Linear(48, classes)

    def forward(self, x):
        return self.head(self.body(x))


torch.manual_seed(44)
model = Backbone(1000)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
model.head = nn.Linear(48, 6)  # FAULT
for _ in range(250):
    x = torch.randn(32, 18)
    loss = F.cross_entropy(model(x), x[:, :6].argmax(-1))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print("last loss", loss.item())
