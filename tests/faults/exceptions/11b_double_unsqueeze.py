import torch
from torch import nn
from torch.utils.data import DataLoader

frames = [torch.rand(3, 24, 24).unsqueeze(0) for _ in range(12)]
loader = DataLoader(frames, batch_size=4)
extractor = nn.Sequential(nn.Conv2d(3, 6, 3), nn.ReLU(), nn.AdaptiveMaxPool2d(2))

def run():
    collected = []
    for batch in loader:
        collected.append(extractor(batch).flatten(1))
    return torch.cat(collected)

print(run().shape)
