"""InfoNCE with a learned temperature and two encoders.

family: healthy
steps: 400
tempts: gradient_explosion
"""

import math

import torch
from torch import nn
from torch.nn import functional as F


class TwoTowers(nn.Module):
    def __init__(self):
        super().__init__()
        self.image = nn.Sequential(nn.Linear(20, 64), nn.GELU(), nn.Linear(64, 16))
        self.text = nn.Sequential(nn.Linear(12, 64), nn.GELU(), nn.Linear(64, 16))
        self.log_scale = nn.Parameter(torch.tensor(math.log(1 / 0.07)))

    def forward(self, image, text):
        similarity = F.normalize(self.image(image), dim=-1) @ F.normalize(self.text(text), dim=-1).T
        return similarity * self.log_scale.clamp(max=math.log(100)).exp()


torch.manual_seed(17)
to_image, to_text = torch.randn(6, 20), torch.randn(6, 12)
model = TwoTowers()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for _ in range(400):
    topic = torch.randn(32, 6)
    image = topic @ to_image + 0.3 * torch.randn(32, 20)
    text = topic @ to_text + 0.3 * torch.randn(32, 12)
    logits = model(image, text)
    wanted = torch.arange(32)
    loss = (F.cross_entropy(logits, wanted) + F.cross_entropy(logits.T, wanted)) / 2
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print("last loss", loss.item())
