"""A skip branch is built and given to the optimizer, but forward calls the main branch twice.

family: wiring
kinds: parameter_not_updated
step: 0
"""

import torch
from torch import nn
from torch.nn import functional as F


class TwoBranches(nn.Module):
    def __init__(self):
        super().__init__()
        self.local = nn.Linear(12, 32)
        self.remote = nn.Linear(12, 32)
        self.head = nn.Linear(64, 3)

    def forward(self, x):
        both = torch.cat([self.local(x), self.local(x)], dim=-1)  # FAULT
        return self.head(F.relu(both))


torch.manual_seed(72)
model = TwoBranches()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for _ in range(250):
    x = torch.randn(32, 12)
    loss = F.cross_entropy(model(x), x[:, :3].argmax(-1))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print("last loss", loss.item())
