import torch

x = torch.randn(40, 1)
y = 2.5 * x
w = torch.zeros(1, requires_grad=True)
lr = 0.1

for epoch in range(5):
    loss = ((x * w - y) ** 2).mean()
    loss.backward()
    w = w - lr * w.grad
    w.grad.zero_()
print("slope:", w.item())
