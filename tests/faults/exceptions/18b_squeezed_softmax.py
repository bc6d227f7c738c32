import torch
from torch import nn

policy = nn.Linear(4, 3)
softmax = nn.Softmax(dim=1)
optimizer = torch.optim.Adam(policy.parameters(), lr=0.01)

for episode in range(2):
    state = torch.randn(1, 4)
    logits = policy(state).squeeze()
    probs = softmax(logits)
    action = torch.multinomial(probs, 1)
    loss = -torch.log(probs[action]).sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
