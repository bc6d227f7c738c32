import torch
import torch.nn as nn
import torch.nn.functional as F

class SmallCNN(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 8, 3, padding=1)
        self.fc = nn.Linear(256, 10)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.conv(x)), 2)
        x = torch.flatten(x, 1)
        return self.fc(x)

model = SmallCNN()
images = torch.randn(4, 1, 16, 16)
loss = F.cross_entropy(model(images), torch.tensor([1, 0, 3, 2]))
loss.backward()
