import torch
import torch.nn as nn

def make_segmenter():
    down = nn.Conv2d(3, 4, 3, stride=2, padding=1)
    return nn.Sequential(down, nn.ReLU(), nn.Conv2d(4, 1, 1))

def train(steps):
    segmenter = make_segmenter()
    sgd = torch.optim.SGD(segmenter.parameters(), lr=0.1)
    for _ in range(steps):
        scan = torch.rand(2, 3, 32, 32)
        mask = (scan.mean(1, keepdim=True) > 0.5).float()
        sgd.zero_grad()
        nn.BCEWithLogitsLoss()(segmenter(scan), mask).backward()
        sgd.step()

train(2)
