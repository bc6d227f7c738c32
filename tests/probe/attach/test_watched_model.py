"""Updates that no hook tells of: seen by versions, addresses and, of small parameters, by their bytes."""

from collections.abc import Callable

import pytest
import torch
from torch import nn

from probe.attach.layout import describe_model
from probe.attach.watched_model import WatchedModel


def watched(model: nn.Module) -> WatchedModel:
    model(torch.ones(2, 40, dtype=next(model.parameters()).dtype)).sum().backward()
    found = WatchedModel(model, describe_model(model), None)
    found.note_backward()
    return found


def replace_data(parameter: nn.Parameter) -> None:
    parameter.data = parameter.data + 1


CHANGES: dict[str, Callable[[nn.Parameter], object]] = {
    "in place": lambda parameter: parameter.detach().add_(1),
    "through .data": lambda parameter: parameter.data.add_(1),
    "by its last byte": lambda parameter: parameter.data.view(-1)[-1].mul_(1 + 2.0**-22),
    "replaced": replace_data,
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_change_of_a_small_parameter_is_seen(
    change: Callable[[nn.Parameter], object], dtype: torch.dtype
) -> None:
    model = nn.Linear(40, 40, dtype=dtype)
    found = watched(model)
    assert not found.was_updated_unseen()
    change(model.bias)
    assert found.was_updated_unseen()


def test_a_small_parameter_behind_a_large_one_is_the_one_that_is_read() -> None:
    model = nn.Sequential(nn.Linear(40, 4000), nn.Linear(4000, 3))
    found = watched(model)
    model[1].bias.data.add_(1)
    assert found.was_updated_unseen()


def test_a_parameter_whose_memory_was_freed_is_not_read() -> None:
    model = nn.Linear(40, 3)
    found = watched(model)
    for parameter in model.parameters():
        parameter.untyped_storage().resize_(0)
    found.note_backward()
    assert not found.was_updated_unseen()


def test_what_is_compared_can_still_be_resized() -> None:
    model = nn.Linear(40, 3)
    watched(model).was_updated_unseen()
    model.bias.untyped_storage().resize_(64)
    assert model.bias.untyped_storage().nbytes() == 64
