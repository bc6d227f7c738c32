import torch
import torch.nn as nn

class DeepNet(nn.Module):
    def __init__(self, sizes):
        super().__init__()
        self.layers = [nn.Linear(a, b) for a, b in zip(sizes, sizes[1:])]

    def forward(self, x):
        for layer in self.layers:
            x = torch.relu(layer(x))
        return x

deep = DeepNet([8, 16, 16, 1])
optimizer = torch.optim.Adam(deep.parameters(), lr=1e-3)
loss = deep(torch.randn(4, 8)).mean()
loss.backward()
optimizer.step()
