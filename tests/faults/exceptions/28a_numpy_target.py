import numpy as np
import torch
from torch import nn

t = np.linspace(0, 6, 40)
source = torch.tensor(t, dtype=torch.float32).unsqueeze(1)
target = torch.tensor(np.sin(t)).unsqueeze(1)
model = nn.Sequential(nn.Linear(1, 16), nn.Tanh(), nn.Linear(16, 1))
opt = torch.optim.Adam(model.parameters(), lr=0.01)

for epoch in range(3):
    loss = nn.HuberLoss()(model(source), target)
    opt.zero_grad()
    loss.backward()
    opt.step()
