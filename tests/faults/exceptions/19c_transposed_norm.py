import torch
import torch.nn as nn

class MixerBlock(nn.Module):
    def __init__(self, tokens, channels):
        super().__init__()
        self.ln = nn.LayerNorm(channels)
        self.mix = nn.Linear(tokens, tokens)

    def forward(self, x):
        y = self.ln(x.transpose(1, 2))
        return x + self.mix(y).transpose(1, 2)

mixer = nn.Sequential(MixerBlock(9, 16), MixerBlock(9, 16))
patches = torch.randn(3, 9, 16)
mixer(patches).sum().backward()
