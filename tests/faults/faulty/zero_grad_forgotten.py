"""The loop never clears gradients: each step uses the sum of all before it.

family: optimisation
kinds: accumulated_gradient, gradient_explosion, loss_divergence
step: 1
"""

import torch
from torch import nn
from torch.nn import functional as F


def train(model, batches):
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for x, y in batches:
        loss = F.cross_entropy(model(x), y)
        loss.backward()  # FAULT
        optimizer.step()
    return loss


torch.manual_seed(42)
data = [torch.randn(32, 12) for _ in range(300)]
model = nn.Sequential(nn.Linear(12, 48), nn.ReLU(), nn.Linear(48, 4))
print("last loss", train(model, [(x, (x[:, :4]).argmax(-1)) for x in data]).item())
