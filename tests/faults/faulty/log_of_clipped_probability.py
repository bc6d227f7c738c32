"""From step 150 on one class is impossible, the log of its probability is -Inf, and every batch is skipped.

family: forward
kinds: nonfinite_loss
step: 150
origin: none
"""

import math

import torch
from torch import nn

torch.manual_seed(11)
model = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 5), nn.Softmax(-1))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
skipped = 0
for step in range(300):
    x = torch.randn(32, 20)
    allowed = torch.ones(5)
    if step >= 150:
        allowed[0] = 0.0
    probability = model(x) * allowed
    loss = -probability.gather(1, x[:, :5].argmax(1, keepdim=True)).log().mean()  # FAULT
    if math.isinf(loss.item()):
        skipped += 1
        continue
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print("skipped", skipped)
