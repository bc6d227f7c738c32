"""A custom autograd function saves its output and divides by it in backward; the output may be 0.

family: backward
kinds: nonfinite_gradient
step: 69
module: root
"""

import torch
from torch import nn
from torch.nn import functional as F


class SignedRoot(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        y = x.sign() * x.abs().sqrt()
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, gradient):
        (y,) = ctx.saved_tensors
        return gradient / (2 * y.abs())  # FAULT


class RootLayer(nn.Module):
    def forward(self, x):
        return SignedRoot.apply(x)  # ORIGIN


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(9, 32, bias=False)
        self.root = RootLayer()
        self.second = nn.Linear(32, 2)

    def forward(self, x):
        return self.second(self.root(self.first(x)))


torch.manual_seed(30)
model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(120):
    x = torch.randn(16, 9)
    if step == 69:
        x[1] = 0.0
    loss = F.cross_entropy(model(x), (x[:, 0] > 0).long())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print("last loss", loss.item())
