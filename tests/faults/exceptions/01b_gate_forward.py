import torch
import torch.nn as nn

class GatedBlock(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.value = nn.Linear(width, width)
        self.gate_proj = nn.Linear(width, width)

    def forward(self, x):
        gate = torch.sigmoid(self.gate_proj(x))
        gate *= 0.9
        return x + gate * self.value(x)

block = GatedBlock(6)
sgd = torch.optim.SGD(block.parameters(), lr=0.1)
batch = torch.rand(10, 6)
error = (block(batch) - batch.flip(1)).abs().mean()
error.backward()
sgd.step()
