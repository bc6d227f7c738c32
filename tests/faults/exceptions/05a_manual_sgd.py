import torch

x = torch.linspace(-1, 1, 50)
y = 3 * x + 0.5
slope = torch.tensor(0.0, requires_grad=True)
offset = torch.tensor(0.0, requires_grad=True)

for epoch in range(20):
    loss = ((slope * x + offset - y) ** 2).mean()
    loss.backward()
    slope -= 0.1 * slope.grad
    offset -= 0.1 * offset.grad
    slope.grad.zero_()
    offset.grad.zero_()
print(slope, offset)
