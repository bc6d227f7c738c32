"""A weight decay of 5 instead of 5e-4 pulls every weight to zero; the net ends up predicting one value.

family: optimisation
kinds: update_ratio_high, gradient_vanishing, zero_gradient, output_degenerate, loss_plateau
step: 0
"""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(46)
model = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 5))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=5.0)  # FAULT
for _ in range(300):
    x = torch.randn(32, 20)
    loss = F.cross_entropy(model(x), x[:, :5].argmax(-1))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print("last loss", loss.item())
