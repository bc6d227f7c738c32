"""Three tasks, of which each batch has one: the other heads get no gradient at that step.

family: healthy
steps: 600
tempts: zero_gradient, parameter_not_updated, loss_spike
"""

import torch
from torch import nn
from torch.nn import functional as F


class MultiTask(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(12, 48), nn.ReLU())
        self.heads = nn.ModuleDict(
            {"sum": nn.Linear(48, 1), "sign": nn.Linear(48, 2), "rank": nn.Linear(48, 4)}
        )

    def forward(self, x, task):
        return self.heads[task](self.trunk(x))


torch.manual_seed(39)
model = MultiTask()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for _ in range(600):
    x = torch.randn(32, 12)
    task = ("sum", "sign", "rank")[torch.randint(0, 3, ()).item()]
    output = model(x, task)
    if task == "sum":
        loss = F.mse_loss(output.squeeze(-1), x.sum(-1))
    elif task == "sign":
        loss = F.cross_entropy(output, (x[:, 0] > 0).long())
    else:
        loss = F.cross_entropy(output, x[:, :4].argmax(-1))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print("last loss", loss.item())
