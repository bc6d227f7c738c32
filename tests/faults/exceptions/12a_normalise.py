import torch

torch.manual_seed(1)
samples = torch.randn(10, 4)
mean = torch.tensor([0.1, 0.2, 0.3])
std = torch.tensor([1.0, 1.1, 0.9])
layer = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)

for step in range(3):
    normed = (samples - mean) / std
    loss = layer(normed).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
