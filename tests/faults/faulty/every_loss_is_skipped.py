"""A row of weights is overwritten with NaN; the script skips each loss that is not finite, for ever.

family: optimisation
kinds: nonfinite_loss
step: 60
origin: none
"""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(10)
model = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 5))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for step in range(300):
    x = torch.randn(32, 20)
    if step == 60:
        model[0].weight.data[3] = torch.log(torch.tensor(-1.0))  # FAULT
    loss = F.cross_entropy(model(x), x[:, :5].argmax(1))
    if not torch.isfinite(loss):
        continue
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
