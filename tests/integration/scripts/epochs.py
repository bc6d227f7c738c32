"""Two epochs over a DataLoader, with an evaluation after each; prints its losses."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
training = DataLoader(TensorDataset(torch.randn(12, 4), torch.arange(12) % 3), 4)
testing = DataLoader(TensorDataset(torch.randn(8, 4), torch.arange(8) % 3), 4)
model = nn.Linear(4, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(2):
    model.train()
    for inputs, targets in training:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(inputs), targets)
        loss.backward()
        optimizer.step()
        print(repr(loss.item()))
    model.eval()
    with torch.no_grad():
        for inputs, _ in testing:
            model(inputs)
