"""Epochs with validation, checkpoints, early stopping and a plateau scheduler.

family: healthy
steps: 600
tempts: overfitting, loss_plateau, loss_spike
"""

import io

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(34)
x = torch.randn(1200, 10)
y = (x[:, 0] * x[:, 1] > 0).long()
train = DataLoader(TensorDataset(x[:960], y[:960]), batch_size=32, shuffle=True)
valid = DataLoader(TensorDataset(x[960:], y[960:]), batch_size=120)
model = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, 2))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.05)
schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=2)
best = float("inf")
for epoch in range(20):
    model.train()
    for features, label in train:
        loss = F.cross_entropy(model(features), label)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        validation = sum(F.cross_entropy(model(a), b).item() for a, b in valid) / len(valid)
    schedule.step(validation)
    if validation < best:
        best = validation
        torch.save(model.state_dict(), io.BytesIO())
    print(epoch, validation)
