"""Takes gradients by torch.autograd.grad and updates with a momentum of its own."""

import torch

torch.manual_seed(0)
net = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
momenta = [torch.zeros_like(parameter) for parameter in net.parameters()]
x = torch.randn(64, 8)
for _ in range(40):
    loss = torch.nn.functional.mse_loss(net(x), x.sum(1, keepdim=True))
    gradients = torch.autograd.grad(loss, list(net.parameters()))
    with torch.no_grad():
        for parameter, gradient, momentum in zip(net.parameters(), gradients, momenta, strict=True):
            momentum.mul_(0.9).add_(gradient)
            parameter.sub_(0.01 * momentum)
print(float(loss), float(sum(parameter.sum() for parameter in net.parameters())))
