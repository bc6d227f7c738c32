"""Classes are numbered from 1 in one file of the data set; the last class has no logit.

family: data
kinds: exception
step: 70
ends: error
"""

import torch
from torch import nn
from torch.nn import functional as F


def read_labels(count):
    labels = torch.randint(0, 5, (count,))
    labels[70 * 16 :] += 1
    labels[70 * 16] = 5
    return labels


torch.manual_seed(61)
features, labels = torch.randn(100 * 16, 12), read_labels(100 * 16)
model = nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, 5))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for x, y in zip(features.split(16), labels.split(16), strict=True):
    loss = F.cross_entropy(model(x), y)  # FAULT
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
