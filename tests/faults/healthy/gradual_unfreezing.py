"""Fine-tuning unfreezes one more layer every 150 steps; until then they have no gradient.

family: healthy
steps: 600
tempts: parameter_not_updated, zero_gradient, gradient_explosion, loss_spike
"""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(35)
model = nn.Sequential(
    nn.Linear(20, 48), nn.GELU(), nn.Linear(48, 48), nn.GELU(), nn.Linear(48, 48), nn.GELU(), nn.Linear(48, 5)
)
for layer in (model[0], model[2], model[4]):
    layer.requires_grad_(False)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for step in range(600):
    if step % 150 == 0 and step > 0:
        model[6 - 2 * (step // 150)].requires_grad_(True)
    x = torch.randn(32, 20)
    loss = F.cross_entropy(model(x), (x[:, :5] + x[:, 5:10]).argmax(-1))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print("last loss", loss.item())
