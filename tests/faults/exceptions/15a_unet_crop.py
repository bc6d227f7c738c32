import torch
import torch.nn as nn

class UNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.enc = nn.Conv2d(1, 4, 3, padding=1)
        self.pool = nn.MaxPool2d(2)
        self.up = nn.ConvTranspose2d(4, 4, 2, stride=2)
        self.out = nn.Conv2d(8, 1, 1)

    def forward(self, x):
        skip = torch.relu(self.enc(x))
        deep = self.up(self.pool(skip))
        return self.out(torch.cat([skip, deep], dim=1))

unet = UNet()
scan = torch.rand(2, 1, 15, 15)
unet(scan).mean().backward()
