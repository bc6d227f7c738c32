import torch
from torch import nn

detector = nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 1))
bce = nn.BCEWithLogitsLoss()
optimizer = torch.optim.Adam(detector.parameters(), lr=1e-3)

for epoch in range(3):
    signals = torch.randn(8, 6)
    is_fault = (signals[:, 0] > 0).float()
    loss = bce(detector(signals), is_fault)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
