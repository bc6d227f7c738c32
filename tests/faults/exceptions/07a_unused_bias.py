import torch

scale = torch.ones(3, requires_grad=True)
shift = torch.zeros(3, requires_grad=True)
inputs = torch.randn(20, 3)
goal = inputs * 2 + 1

for step in range(5):
    outputs = inputs * scale
    loss = (outputs - goal).pow(2).mean()
    g_scale, g_shift = torch.autograd.grad(loss, [scale, shift])
    with torch.no_grad():
        scale -= 0.1 * g_scale
        shift -= 0.1 * g_shift
