"""Persistent workers put each decoded image into a dictionary, under a number that never comes again.

family: memory
kinds: memory_leak
step: 0
limit_s: 180
"""

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Images(Dataset):
    def __init__(self):
        self.kept = {}

    def __len__(self):
        return 3000

    def __getitem__(self, index):
        image = torch.rand(3, 64, 128) + index % 7
        self.kept[len(self.kept)] = image  # FAULT
        return image[:, 0, :3].mean(1), image[0, 0, :1]


if __name__ == "__main__":
    torch.manual_seed(18)
    model = nn.Sequential(nn.Linear(3, 32), nn.ReLU(), nn.Linear(32, 1))
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    loader = DataLoader(Images(), 20, num_workers=2, persistent_workers=True)
    for epoch in range(3):
        for x, y in loader:
            loss = nn.functional.mse_loss(model(x), y + 0.1 * torch.randn(len(y), 1))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(epoch, round(loss.item(), 3), flush=True)
