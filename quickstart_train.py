"""Small trainings for `dashboard quickstart`: plain PyTorch, which knows nothing of the probe.

dashboard quickstart gradient                 # trains, and says what was found
dashboard run quickstart_train.py gradient    # the same training as any other script

scenario    what is wrong with it, for real
autograd    two equal items in one batch: a distance of 0, whose square root has an infinite slope
gradient    a factor between two layers is too small for some steps, and too large for one later on
memory      every loss goes into a list, and keeps its graph
training    nothing
"""

import argparse
import sys

import torch
from torch import nn
from torch.nn import functional as F

STEPS = {"autograd": 90, "gradient": 120, "memory": 500, "training": 150}


class Scaled(nn.Module):
    """The identity; its backward multiplies the gradient by `factor`."""

    factor = 1.0

    def forward(self, x):
        return x * self.factor + x.detach() * (1 - self.factor)


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(16, 32)
        self.second = nn.Linear(32, 32)
        self.scaled = Scaled()
        self.head = nn.Linear(32, 4)

    def forward(self, x):
        return self.head(self.scaled(torch.tanh(self.second(torch.tanh(self.first(x))))))


def distance(first, second):
    squares = (first - second).square().sum(-1)
    return torch.sqrt(squares)


def pairs(step):
    """Items, noisy copies of some of them and other items, and which are copies."""
    left = torch.randn(16, 16)
    is_same = torch.rand(16) > 0.5
    right = torch.where(is_same[:, None], left + 0.1 * torch.randn_like(left), torch.randn_like(left))
    if step == 60:
        right[3] = left[3]
    return left, right, is_same


def contrastive(model, left, right, is_same):
    gap = distance(model(left), model(right))
    return torch.where(is_same, gap.square(), (1 - gap).clamp_min(0).square()).mean()


def labelled(step):
    x = torch.randn(32, 16)
    return x, x[:, :4].argmax(-1)


def classification(model, x, y):
    return F.cross_entropy(model(x), y)


def spoil_gradient(model, step):
    model.scaled.factor = 1e-6 if 50 <= step < 65 else 1000.0 if step == 100 else 1.0


kept = []


def keep_loss(loss):
    """For a plot, later."""
    kept.append(loss)


def show_progress(scenario, step, steps, loss):
    """On a terminal one line that is written over; elsewhere nothing."""
    if sys.stderr.isatty() and (step % 10 == 9 or step + 1 == steps):
        end = "\n" if step + 1 == steps else ""
        print(
            f"\r{scenario}: step {step + 1} of {steps}, loss {loss:.3f}  ",
            end=end,
            file=sys.stderr,
            flush=True,
        )


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("scenario", choices=list(STEPS))
    parser.add_argument("--steps", type=int, metavar="N", help="(default: enough to find what is wrong)")
    args = parser.parse_args()
    torch.set_num_threads(1)  # on a busy machine several threads spin for each other
    torch.manual_seed(0)
    steps = args.steps or STEPS[args.scenario]
    make_batch, loss_of = (pairs, contrastive) if args.scenario == "autograd" else (labelled, classification)
    model = Network()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for step in range(steps):
        batch = make_batch(step)
        if args.scenario == "gradient":
            spoil_gradient(model, step)
        loss = loss_of(model, *batch)
        optimizer.zero_grad()
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        if torch.isfinite(norm):  # a bad batch costs one update, not the run
            optimizer.step()
        if args.scenario == "memory":
            keep_loss(loss)
        show_progress(args.scenario, step, steps, loss.item())


if __name__ == "__main__":
    main()
