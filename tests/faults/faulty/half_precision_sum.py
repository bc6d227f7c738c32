"""Pools a long sequence in float16 to save memory; the sum of a loud recording passes 65,504.

family: forward
kinds: nonfinite_loss
step: 60
module: pool
"""

import torch
from torch import nn
from torch.nn import functional as F


class SumPool(nn.Module):
    def forward(self, x):
        pooled = x.half().sum(dim=1)  # FAULT
        return pooled.float() / x.shape[1]


class AudioTagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.frontend = nn.Linear(8, 32)
        self.pool = SumPool()
        self.head = nn.Linear(32, 6)

    def forward(self, frames):
        return self.head(self.pool(F.relu(self.frontend(frames))))


def recordings(count):
    labels = torch.randint(0, 6, (count,))
    frames = torch.randn(count, 400, 8) + labels[:, None, None] * 0.2
    return frames, labels


torch.manual_seed(4)
model = AudioTagger()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for step in range(100):
    frames, labels = recordings(8)
    if step == 60:
        frames[0] *= 2000.0  # recorded without gain control
    loss = F.cross_entropy(model(frames), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print("last loss", loss.item())
