"""A data set that caches what it has decoded during the first epoch, and a list of loss values.

family: healthy
steps: 600
tempts: memory_leak, performance_degradation
"""

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset


class CachedScans(Dataset):
    def __init__(self, count):
        self.cache = {}
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        if index not in self.cache:
            generator = torch.Generator().manual_seed(index)
            scan = torch.randn(1, 16, 16, generator=generator)
            self.cache[index] = (scan, int(scan[0, :8].mean() > scan[0, 8:].mean()))
        return self.cache[index]


torch.manual_seed(53)
model = nn.Sequential(nn.Flatten(), nn.Linear(256, 32), nn.ReLU(), nn.Linear(32, 2))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
loader = DataLoader(CachedScans(2400), batch_size=16, shuffle=True)
losses = []
for _ in range(4):
    for scan, label in loader:
        loss = F.cross_entropy(model(scan), label)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
print("mean loss", sum(losses) / len(losses))
