"""Each persistent worker caches its images, and a shuffle gives it others in each epoch.

family: healthy
steps: 450
tempts: memory_leak, high_resource_use
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
        self.kept.setdefault(index, image)
        return image[:, 0, :3].mean(1), image[0, 0, :1]


if __name__ == "__main__":
    torch.manual_seed(22)
    model = nn.Sequential(nn.Linear(3, 32), nn.ReLU(), nn.Linear(32, 1))
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    loader = DataLoader(Images(), 20, shuffle=True, num_workers=2, persistent_workers=True)
    for epoch in range(3):
        for x, y in loader:
            loss = nn.functional.mse_loss(model(x), y + 0.1 * torch.randn(len(y), 1))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(epoch, round(loss.item(), 3), flush=True)
