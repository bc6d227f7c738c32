import torch
from torch import nn

net = nn.Linear(5, 3)
optim = torch.optim.Adam(net.parameters())
feats, classes = torch.randn(30, 5), torch.randint(0, 3, (30,))
correct = 0
for epoch in range(2):
    logits = net(feats)
    loss = nn.functional.cross_entropy(logits, classes)
    optim.zero_grad()
    loss.backward()
    optim.step()
    hits = logits.argmax(1) == classes
    correct += hits.item()
print(correct)
