"""A training that records events of its own, catches errors and ends with a NaN and an exception."""

import copy

import torch
from torch import nn

import probe


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 8)
        self.last = nn.Linear(8, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.first(x)
        return self.last(torch.sqrt(hidden - hidden.detach().min() - SHIFT))


SHIFT = -1.0


def load(number: int) -> None:
    parts = torch.full((3, 2), float(number))
    raise OSError(f"cannot read shard {number} of {len(parts)}")


def main() -> None:
    global SHIFT
    torch.manual_seed(0)
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for step in range(6):
        SHIFT = {4: 0.5, 5: 0.0}.get(step, -1.0)
        good = copy.deepcopy(model.state_dict())
        optimizer.zero_grad()
        loss = model(torch.randn(5, 4)).square().mean()
        if step == 2:
            probe.record_event(
                "two equal", severity="warning", where="batch 3", nested={"none": None, "n": torch.tensor(2)}
            )
            probe.record_event("two equal", share=float("nan"))
            try:
                load(7)
            except OSError as error:
                probe.track_error(error, severity="error", category="data", context={"shard": 7})
            try:
                with probe.debug_context("epoch"), probe.debug_context("validation"):
                    raise KeyError("metric")
            except KeyError:
                pass
        loss.backward()
        optimizer.step()
        if step == 4:
            model.load_state_dict(good)
    with probe.debug_context("saving"):
        raise RuntimeError("the disk is full")


main()
