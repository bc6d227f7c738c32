import torch

weights = torch.randn(4, 1, requires_grad=True) * 0.01
intercept = torch.zeros(1, requires_grad=True)
optimizer = torch.optim.SGD([weights, intercept], lr=0.1)

X = torch.randn(25, 4)
y = X @ torch.tensor([[1.0], [2.0], [0.0], [-1.0]])
for _ in range(10):
    loss = ((X @ weights + intercept - y) ** 2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
