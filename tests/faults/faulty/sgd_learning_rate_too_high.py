"""SGD on a convolutional regressor with a learning rate of 3: the loss runs away within a few steps.

family: optimisation
kinds: loss_divergence, gradient_explosion, loss_spike, update_ratio_high, nonfinite_loss, nonfinite_gradient
step: 0
"""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(41)
model = nn.Sequential(nn.Conv1d(1, 8, 5), nn.Tanh(), nn.Flatten(), nn.Linear(8 * 28, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=3.0, momentum=0.9)  # FAULT
for _ in range(200):
    signal = torch.randn(16, 1, 32)
    loss = F.mse_loss(model(signal), signal.mean(-1) * 5)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print("last loss", loss.item())
