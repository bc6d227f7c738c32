"""Inputs of large but usual ranges: pixels from 0 to 255 into a batch norm, token ids into an embedding.

family: healthy
steps: 300
tempts: input_out_of_range, gradient_explosion, poor_initialization
"""

import torch
from torch import nn
from torch.nn import functional as F


class ImageAndText(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.BatchNorm2d(3)
        self.conv = nn.Conv2d(3, 8, 3)
        self.words = nn.Embedding(50_000, 8)
        self.head = nn.Linear(16, 3)

    def forward(self, image, tokens):
        seen = F.relu(self.conv(self.scale(image))).mean((2, 3))
        return self.head(torch.cat([seen, self.words(tokens).mean(1)], -1))


torch.manual_seed(50)
model = ImageAndText()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
for _ in range(300):
    image = torch.randint(0, 256, (16, 3, 8, 8)).float()
    label = torch.randint(0, 3, (16,))
    image[torch.arange(16), label] = (image[torch.arange(16), label] + 40).clamp_max(255)
    loss = F.cross_entropy(model(image, torch.randint(0, 50_000, (16, 4))), label)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print("last loss", loss.item())
