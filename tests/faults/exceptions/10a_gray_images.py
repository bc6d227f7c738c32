import torch
import torch.nn as nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(3, 16, 5)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.last = nn.Linear(16, 10)

    def forward(self, img):
        h = self.pool(torch.relu(self.first(img)))
        return self.last(h.flatten(1))

net = Net()
digits = torch.rand(8, 1, 28, 28)
logits = net(digits)
nn.CrossEntropyLoss()(logits, torch.randint(0, 10, (8,))).backward()
