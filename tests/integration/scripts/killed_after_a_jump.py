"""The loss jumps with the length of the input; the process dies while nobody knows yet what follows."""

import os
import signal
import sys
import time

import torch
from torch import nn

import probe

torch.manual_seed(0)
torch.set_num_threads(1)
model = nn.Linear(1, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
probe.watch(model, optimizer, spool=sys.argv[1], connect="", run="jump", quiet=True)
for step in range(103):
    inputs = torch.rand(32, 3 if step < 100 else 9, 1)
    loss = (model(inputs).sum(1) - torch.rand(32, 1) - (50.0 if step >= 100 else 0.0)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
# Until the journal knows of the last step, and a moment more.
time.sleep(2.0)
os.kill(os.getpid(), signal.SIGKILL)
