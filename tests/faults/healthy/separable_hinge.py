"""A linear SVM on separable data: the hinge loss becomes exactly 0 and only weight decay is left.

family: healthy
steps: 700
tempts: zero_gradient, gradient_vanishing
"""

import torch
from torch import nn

torch.manual_seed(21)
x = torch.randn(200, 5)
y = torch.where(x[:, 0] > 0, 1.0, -1.0)
x[:, 0] += y
model = nn.Linear(5, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, weight_decay=1e-4)
for _ in range(700):
    rows = torch.randint(0, 200, (40,))
    loss = (1 - y[rows] * model(x[rows]).squeeze(-1)).clamp_min(0).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print("last loss", loss.item())
