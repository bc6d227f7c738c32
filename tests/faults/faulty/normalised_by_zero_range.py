"""Min-max scaling in the data set divides by a range of zero: one image is blank.

family: data
kinds: nonfinite_input, nonfinite_loss
step: 59
module: "" | outside
"""

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset


class Scans(Dataset):
    def __init__(self, count):
        generator = torch.Generator().manual_seed(38)
        self.labels = torch.randint(0, 2, (count,), generator=generator)
        self.images = torch.rand(count, 1, 10, 10, generator=generator)
        self.images[:, :, :5] += self.labels[:, None, None, None] * 0.5
        self.images[59 * 12 + 3] = 0.25

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        image = self.images[index]
        image = (image - image.min()) / (image.max() - image.min())  # FAULT
        return image, self.labels[index]


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 8, 3)
        self.head = nn.Linear(8, 2)

    def forward(self, x):
        return self.head(F.relu(self.conv(x)).mean((2, 3)))


torch.manual_seed(38)
model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
for image, label in DataLoader(Scans(110 * 12), batch_size=12):
    loss = F.cross_entropy(model(image), label)  # ORIGIN
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print("last loss", loss.item())
