"""Embeddings of which every batch hits one row, and those that are used seldom or in a small part."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from run_numbers import run_of
from torch import Tensor, nn

import probe

pytestmark = pytest.mark.usefixtures("one_thread", "nothing_switched_off")
Batch = Callable[[int], Tensor]


def words(step: int) -> Tensor:
    return torch.randint(0, 20, (8, 5))


def events(spool: Path, batch: Batch, *, rows: int = 20, **options: Any) -> list[Any]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(rows, 6, **options), nn.Flatten(), nn.Linear(30, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with probe.watch(model, optimizer):
        for step in range(40):
            indices = batch(step)
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(indices), torch.arange(8) % 3).backward()
            optimizer.step()
    return [event for event in run_of(spool).latest_events if event.kind == "parameter_not_updated"]


@pytest.mark.parametrize("options", [{}, {"sparse": True}])
@pytest.mark.parametrize("row", [0, 7])
def test_table_whose_every_index_is_one_is_told(spool: Path, row: int, options: dict[str, bool]) -> None:
    (event,) = events(spool, lambda step: torch.full((8, 5), row), **options)
    assert (event.severity, event.subject, event.step) == ("warning", "0.weight", 9)
    assert f"only row {row} got a gradient" in event.message and "upside down" in event.advice[-1]


HEALTHY: dict[str, tuple[Batch, dict[str, Any]]] = {
    "words": (words, {}),
    "another row each time": (lambda step: torch.full((8, 5), step % 20), {}),
    "a row that comes once": (lambda step: torch.full((8, 5), 3) if step != 8 else words(step), {}),
    "two rows": (lambda step: torch.arange(40).view(8, 5) % 2, {}),
    "rare tokens": (lambda step: words(step) // 10 * 19, {}),
    "token types": (lambda step: torch.zeros(8, 5, dtype=torch.long), {"rows": 2}),
    "padding alone": (lambda step: torch.zeros(8, 5, dtype=torch.long), {"padding_idx": 0}),
    "sparse words": (words, {"sparse": True}),
}


@pytest.mark.parametrize("name", HEALTHY)
def test_table_that_is_used_is_silent(spool: Path, name: str) -> None:
    batch, options = HEALTHY[name]
    found = [event.message for event in events(spool, batch, **options)]
    assert [message for message in found if "got a gradient in each" in message] == []
