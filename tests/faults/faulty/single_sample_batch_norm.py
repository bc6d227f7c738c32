"""The last batch has one sample: batch norm in training mode refuses it.

family: process
kinds: exception
step: 60
ends: error
"""

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(10, 24)
        self.norm = nn.BatchNorm1d(24)
        self.second = nn.Linear(24, 2)

    def forward(self, x):
        x = self.norm(self.first(x))  # FAULT
        return self.second(F.relu(x))


torch.manual_seed(86)
x = torch.randn(60 * 20 + 1, 10)
model = Net()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for batch, label in DataLoader(TensorDataset(x, (x[:, 0] > 0).long()), batch_size=20):
    loss = F.cross_entropy(model(batch), label)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
