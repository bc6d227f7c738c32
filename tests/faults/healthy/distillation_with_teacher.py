"""Distillation from a frozen teacher in eval mode, with a target network by exponential averaging.

family: healthy
steps: 500
tempts: parameter_not_updated, gradient_vanishing
"""

import copy

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(55)
teacher = nn.Sequential(nn.Linear(12, 128), nn.ReLU(), nn.Linear(128, 6)).eval().requires_grad_(False)
student = nn.Sequential(nn.Linear(12, 24), nn.ReLU(), nn.Linear(24, 6))
average = copy.deepcopy(student).requires_grad_(False)
optimizer = torch.optim.Adam(student.parameters(), lr=2e-3)
for _ in range(500):
    x = torch.randn(32, 12)
    wanted = F.softmax(teacher(x) / 0.5, -1)
    loss = F.kl_div(F.log_softmax(student(x) / 0.5, -1), wanted, reduction="batchmean")
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    with torch.no_grad():
        for slow, fast in zip(average.parameters(), student.parameters(), strict=True):
            slow.lerp_(fast, 0.01)
print("last loss", loss.item())
