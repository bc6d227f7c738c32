"""Has a child, forked between the making of the optimizer and the first step, send a loss back."""

import multiprocessing

import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)
model = nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def send_back() -> float:
    """Gradients stay in the process that asks for them."""
    loss = model(torch.ones(3, 4)).square().mean()
    loss.backward()
    return float(loss.item())


child = multiprocessing.get_context("fork").Process(target=send_back)
child.start()
child.join()
assert child.exitcode == 0
for _ in range(3):
    optimizer.zero_grad()
    print(repr(send_back()))
    optimizer.step()
