import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

class ValueNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.v = nn.Linear(3, 1)

    def forward(self, s):
        return self.v(s).squeeze(-1)

value_net = ValueNet()
states = torch.randn(6, 3)
rewards = np.array([0.0, 1.0, 0.5, 0.0, 0.0, 2.0])
returns = torch.as_tensor(np.cumsum(rewards[::-1])[::-1].copy())
F.huber_loss(value_net(states), returns, delta=0.5).backward()
