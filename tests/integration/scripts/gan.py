"""Two models that train against each other, in a function; prints the losses of both."""

import torch
from torch import nn


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    painter, judge = nn.Linear(3, 4), nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 1))
    of_painter = torch.optim.Adam(painter.parameters())
    of_judge = torch.optim.Adam(judge.parameters())
    for _ in range(3):
        of_judge.zero_grad()
        fake = painter(torch.randn(5, 3))
        loss = judge(fake.detach()).mean() - judge(torch.randn(5, 4)).mean()
        loss.backward()
        of_judge.step()
        print("judge", repr(loss.item()))
        of_painter.zero_grad()
        loss = -judge(fake).mean()
        loss.backward()
        of_painter.step()
        print("painter", repr(loss.item()))


main()
