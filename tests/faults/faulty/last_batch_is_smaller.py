"""forward reshapes with the batch size of the configuration; the last batch of the epoch is smaller.

family: process
kinds: exception
step: 75
ends: error
"""

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

BATCH = 16


class Patches(nn.Module):
    def __init__(self):
        super().__init__()
        self.mix = nn.Linear(12, 24)
        self.head = nn.Linear(4 * 24, 3)

    def forward(self, x):
        patches = x.reshape(BATCH, 4, 12)  # FAULT
        return self.head(F.gelu(self.mix(patches)).flatten(1))


torch.manual_seed(85)
x = torch.randn(75 * BATCH + 5, 48)
loader = DataLoader(TensorDataset(x, x[:, :3].argmax(-1)), batch_size=BATCH)
model = Patches()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for features, label in loader:
    loss = F.cross_entropy(model(features), label)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
