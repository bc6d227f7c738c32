"""A training that in step 30 calls C code which lets no other thread run, until somebody writes to its
standard input, and then trains for ever."""

import ctypes
import time

import torch
from torch import nn

import probe


def train(model, optimizer):
    step = 0
    while True:
        model(torch.ones(8, 4)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        if step == 30:
            read = ctypes.PyDLL(None).read(0, ctypes.create_string_buffer(1), 1)  # guilty
            print("read", read, flush=True)
        step += 1
        time.sleep(0.02)


def main():
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    probe.watch(model, optimizer, hang_seconds=3.0)
    train(model, optimizer)


if __name__ == "__main__":
    main()
