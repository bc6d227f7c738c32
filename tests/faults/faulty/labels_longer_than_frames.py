"""A speech model subsamples by 16; no label fits into the frames that are left, and zero_infinity hides it.

family: data
kinds: zero_gradient
step: 0
"""

import torch
from torch import nn

torch.manual_seed(3)
model = nn.Sequential(nn.Conv1d(8, 16, 4, 4), nn.ReLU(), nn.Conv1d(16, 12, 4, 4))  # FAULT
ctc = nn.CTCLoss(zero_infinity=True)
optimizer = torch.optim.Adam(model.parameters(), 1e-3)
for _ in range(120):
    targets = torch.randint(1, 12, (6, 9))
    logits = model(torch.randn(6, 8, 96)).permute(2, 0, 1).log_softmax(2)
    loss = ctc(logits, targets, torch.full((6,), len(logits)), torch.full((6,), 9))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print("loss", loss.item())
