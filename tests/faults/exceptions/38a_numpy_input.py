import numpy as np
import torch
from torch import nn

features = np.random.rand(16, 5).astype(np.float32)
labels = torch.randint(0, 2, (16,))
model = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 2))
optimizer = torch.optim.Adam(model.parameters())

for epoch in range(3):
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(features), labels)
    loss.backward()
    optimizer.step()
