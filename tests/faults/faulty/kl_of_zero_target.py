"""Distillation with KL by hand: a hard label in the teacher's targets makes 0 * log(0).

family: forward
kinds: nonfinite_loss
step: 72
module: outside
"""

import torch
from torch import nn
from torch.nn import functional as F


def kl_divergence(teacher, student_log):
    return (teacher * (teacher.log() - student_log)).sum(-1).mean()  # FAULT


def main():
    torch.manual_seed(16)
    teacher = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 4)).requires_grad_(False)
    student = nn.Linear(8, 4)
    optimizer = torch.optim.SGD(student.parameters(), lr=0.1)
    for step in range(130):
        x = torch.randn(16, 8)
        soft = F.softmax(teacher(x) / 2.0, dim=-1)
        if step == 72:
            soft[0] = F.one_hot(soft[0].argmax(), 4).float()
        loss = kl_divergence(soft, F.log_softmax(student(x), dim=-1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print("last loss", loss.item())


main()
