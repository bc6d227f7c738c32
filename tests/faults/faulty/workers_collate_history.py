"""A collate function keeps all batches in a list of its module, in each persistent worker.

family: memory
kinds: memory_leak
step: 0
limit_s: 180
"""

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

HISTORY = []


class Images(Dataset):
    def __init__(self):
        self.kept = None

    def __len__(self):
        return 3000

    def __getitem__(self, index):
        image = torch.rand(3, 64, 128) + index % 7
        self.kept = index
        return image[:, 0, :3].mean(1), image[0, 0, :1]


def collate(samples):
    batch = torch.utils.data.default_collate(samples)
    HISTORY.append(torch.ones(20, 3, 64, 128) * batch[0][0, 0])  # FAULT
    return batch


if __name__ == "__main__":
    torch.manual_seed(19)
    model = nn.Sequential(nn.Linear(3, 32), nn.ReLU(), nn.Linear(32, 1))
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    loader = DataLoader(
        Images(), 20, shuffle=True, collate_fn=collate, num_workers=2, persistent_workers=True
    )
    for epoch in range(3):
        for x, y in loader:
            loss = nn.functional.mse_loss(model(x), y + 0.1 * torch.randn(len(y), 1))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(epoch, round(loss.item(), 3), flush=True)
