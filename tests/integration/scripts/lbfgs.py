"""An optimizer that evaluates a closure several times a step; prints each step's first loss."""

import torch
from torch import nn


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    x = torch.linspace(-2, 2, 40)[:, None]
    model = nn.Sequential(nn.Linear(1, 8), nn.Tanh(), nn.Linear(8, 1))
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=5, line_search_fn="strong_wolfe")

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = (model(x) - torch.sin(3 * x)).square().mean()
        loss.backward()
        return loss

    for _ in range(6):
        print(repr(optimizer.step(closure).item()))


main()
