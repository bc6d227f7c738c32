"""A record of the data set lacks a field: KeyError in __getitem__ in the middle of the epoch.

family: process
kinds: exception
step: 64
ends: error
"""

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset


class Records(Dataset):
    def __init__(self, count):
        self.records = [{"pixels": torch.rand(20), "label": index % 3} for index in range(count)]
        del self.records[64 * 8 + 5]["label"]

    def __len__(self):
        return len(self.records)

    def __getitem__(self, index):
        record = self.records[index]
        return record["pixels"], record["label"]  # FAULT


torch.manual_seed(87)
model = nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Linear(32, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for pixels, label in DataLoader(Records(1000), batch_size=8):
    loss = F.cross_entropy(model(pixels), label)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
