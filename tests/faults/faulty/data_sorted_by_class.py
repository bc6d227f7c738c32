"""The data set is sorted by class and not shuffled: at each boundary the net meets a class it never saw.

family: data
kinds: loss_spike, loss_divergence, gradient_explosion
step: 100
"""

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(62)
centres = torch.randn(4, 10) * 2
labels = torch.arange(4).repeat_interleave(100 * 16)
features = centres[labels] + torch.randn(len(labels), 10)
loader = DataLoader(TensorDataset(features, labels), batch_size=16, shuffle=False)  # FAULT
model = nn.Sequential(nn.Linear(10, 48), nn.ReLU(), nn.Linear(48, 4))
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
for x, y in loader:
    loss = F.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print("last loss", loss.item())
