import torch
import torch.nn as nn
import torch.nn.functional as F

class ContextBranch(nn.Module):
    def __init__(self, ch):
        super().__init__()
        self.reduce = nn.Conv2d(3, ch, 1)
        self.context_norm = nn.BatchNorm2d(ch)

    def forward(self, image):
        pooled = F.adaptive_avg_pool2d(self.reduce(image), 1)
        return F.interpolate(F.relu(self.context_norm(pooled)), size=image.shape[-2:])

def train_step(branch, image):
    return branch(image).mean().backward()

train_step(ContextBranch(10), torch.rand(1, 3, 32, 32))
