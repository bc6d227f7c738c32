import torch
from torch import nn

def build():
    backbone = nn.Sequential(nn.Linear(12, 8), nn.ReLU())
    return backbone.to(torch.bfloat16), nn.Linear(8, 2)

def train():
    backbone, head = build()
    opt = torch.optim.SGD(head.parameters(), lr=0.1)
    for _ in range(2):
        sample = torch.randn(5, 12)
        with torch.no_grad():
            feats = backbone(sample.bfloat16())
        loss = head(feats).logsumexp(1).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()

train()
