"""Updates that no hook tells of: seen by versions, addresses and, of small parameters, by their bytes."""

from collections.abc import Callable, Iterator

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


class Counted(nn.Linear):
    """Counts how often its parameters are gone through: 5 ms each time where there are 2,500 modules."""

    walks = 0

    def named_parameters(self, *args: object, **kwargs: object) -> Iterator[tuple[str, nn.Parameter]]:
        self.walks += 1
        return super().named_parameters(*args, **kwargs)  # type: ignore[arg-type]


def test_an_optimizer_of_known_parameters_does_not_have_the_model_gone_through() -> None:
    model = Counted(4, 2)
    found = WatchedModel(model, describe_model(model), None)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    before = model.walks
    assert found.is_updated_by(optimizer)
    found.note_step_of(optimizer)
    assert model.walks == before


def test_an_optimizer_of_frozen_parameters_of_another_model_is_not_the_watched_ones() -> None:
    model, other = nn.Linear(4, 2), nn.Linear(4, 2).requires_grad_(False)
    found = WatchedModel(model, describe_model(model), None)
    assert not found.is_updated_by(torch.optim.SGD(other.parameters(), lr=0.1))


def test_a_frozen_parameter_that_is_thawed_is_looked_for_at_once() -> None:
    model = nn.Sequential(nn.Linear(4, 4).requires_grad_(False), nn.Linear(4, 2))
    found = WatchedModel(model, describe_model(model), None)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    found.note_step_of(optimizer)
    model.requires_grad_(True)
    found.note_step_of(optimizer)
    assert found.is_due_for_a_look()
