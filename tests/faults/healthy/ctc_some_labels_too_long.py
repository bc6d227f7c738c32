"""A speech model with zero_infinity, where one label in four does not fit into its frames.

family: healthy
steps: 250
tempts: zero_gradient, loss_spike
"""

import torch
from torch import nn

torch.manual_seed(9)
model = nn.Sequential(nn.Conv1d(8, 32, 4, 4), nn.ReLU(), nn.Conv1d(32, 12, 1))
ctc = nn.CTCLoss(zero_infinity=True)
optimizer = torch.optim.Adam(model.parameters(), 1e-3)
for _ in range(250):
    lengths = torch.tensor([5, 6, 7, 30])
    targets = torch.randint(1, 12, (4, 30))
    logits = model(torch.randn(4, 8, 96)).permute(2, 0, 1).log_softmax(2)
    loss = ctc(logits, targets, torch.full((4,), len(logits)), lengths)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print("loss", loss.item())
