"""What a training records that C follows, beside the same one that goes the slow way."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from armed_training import Training, watched_training
from journal_differences import differences
from journals import Journal
from run_numbers import run_of
from torch import Tensor

Act = Callable[[Training], object]


def recorded(tmp_path: Path, act: Act, *, in_c: bool, **options: Any) -> tuple[Journal, list[Tensor]]:
    """What a training records in which `act` is done while C follows it, and its last weights."""
    spool = tmp_path / ("in_c" if in_c else "slow")
    with watched_training(in_c=in_c, spool=spool, **options) as training:
        act(training)
        if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            torch.cuda.synchronize()  # it may have trained on a stream of its own
        weights = [parameter.detach().clone() for parameter in training.model.parameters()]
    return run_of(spool), weights


def assert_same(tmp_path: Path, act: Act, **options: Any) -> Journal:
    """Have both ways record the same; returns one of the journals."""
    both = [recorded(tmp_path, act, in_c=in_c, **options) for in_c in (True, False)]
    (one, mine), (other, theirs) = both
    assert all(
        np.array_equal(a.cpu().numpy(), b.cpu().numpy(), equal_nan=True)
        for a, b in zip(mine, theirs, strict=True)
    )
    found = differences(other, one)
    assert not found, "\n".join(found)
    return one
