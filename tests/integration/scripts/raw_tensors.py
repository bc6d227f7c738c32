"""Trains two tensors that are no module's, by hand."""

import torch

torch.manual_seed(0)
weight, bias = torch.randn(8, 1, requires_grad=True), torch.zeros(1, requires_grad=True)
x = torch.randn(64, 8)
for _ in range(10):
    loss = (x @ weight + bias - x.sum(1, keepdim=True)).square().mean()
    gradients = torch.autograd.grad(loss, (weight, bias))
    with torch.no_grad():
        weight -= 0.05 * gradients[0]
        bias -= 0.05 * gradients[1]
print(float(loss))
