import torch
from torch import nn

class Attention(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.head_dim = dim // heads
        self.query = nn.Linear(dim, dim)

    def split(self, t):
        b, n, _ = t.shape
        return t.reshape(b, n, self.heads, self.head_dim)

    def forward(self, tokens):
        return self.split(self.query(tokens)).transpose(1, 2)

attn = Attention(dim=64, heads=5)
attn(torch.randn(2, 7, 64)).sum().backward()
