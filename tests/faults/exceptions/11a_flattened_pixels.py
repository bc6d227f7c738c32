import torch
import torch.nn as nn

class DigitNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.c1 = nn.Conv2d(1, 4, 3)
        self.head = nn.LazyLinear(10)

    def forward(self, x):
        x = torch.relu(self.c1(x))
        return self.head(x.flatten(1))

pixels = torch.rand(16, 784)
model = DigitNet()
out = model(pixels)
out.sum().backward()
