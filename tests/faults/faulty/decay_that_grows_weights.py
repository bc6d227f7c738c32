"""Weight decay by hand, added where it is to be subtracted: all weights of a classifier grow by 0.4 % a step.

family: optimisation
kinds: loss_divergence, gradient_explosion, update_ratio_high
step: 0
"""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(63)
centres = torch.randn(6, 20)
model = nn.Sequential(nn.Linear(20, 48), nn.ReLU(), nn.Linear(48, 6))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(900):
    labels = torch.randint(0, 6, (48,))
    inputs = centres[labels] + 1.5 * torch.randn(48, 20)
    loss = F.cross_entropy(model(inputs), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(weight, alpha=4e-3)  # FAULT
print("last loss", loss.item())
