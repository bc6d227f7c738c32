import torch
from torch import nn

def topk_accuracy(output, labels, k=3):
    _, top = output.topk(k, dim=1)
    correct = top.t().eq(labels.view(1, -1).expand(k, -1)).t()
    return correct[:, :k - 1].view(-1).float().sum() / labels.size(0)

net = nn.Linear(8, 6)
opt = torch.optim.SGD(net.parameters(), lr=0.1)
feats, labels = torch.randn(10, 8), torch.randint(0, 6, (10,))
logits = net(feats)
nn.functional.cross_entropy(logits, labels).backward()
opt.step()
print("top-k", topk_accuracy(logits, labels))
