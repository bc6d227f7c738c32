"""A look at a function's variables keeps none of them alive, and changes nothing that the function sees."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from probe.errors import ReplayError
from probe.forensics.loss.call_arguments import variables_of
from probe.forensics.made_elsewhere import is_computed_elsewhere
from probe.incidents.failure_place import failed_call


def look_and_let_go(look: Callable[[], object]) -> bool:
    """With a batch of its own; whether that is gone at the end. No `assert` here: pytest's ask for locals."""
    batch = torch.ones(4)
    freed = weakref.ref(batch)
    look()
    del batch
    return freed() is None


def given_to_a_function() -> bool:
    def step(batch: object) -> object:
        del batch
        return variables_of(sys._getframe())["batch"]

    batch = torch.ones(4)
    freed = weakref.ref(batch)
    is_found = step(batch) is batch
    del batch
    return is_found and freed() is None


def of_a_caught_error(size: int) -> bool:
    batch = torch.ones(size)
    freed = weakref.ref(batch)
    try:
        raise ValueError
    except ValueError as error:
        failed_call(error.__traceback__, None)
    del batch
    return freed() is None


LOOKS: list[Callable[[], object]] = [
    lambda: variables_of(sys._getframe(1)),
    lambda: is_computed_elsewhere(torch.ones(1)),
]


@pytest.mark.parametrize("look", LOOKS, ids=["variables", "made elsewhere"])
def test_batch_is_freed_once_the_function_lets_it_go(look: Callable[[], object]) -> None:
    assert look_and_let_go(look)


def test_batch_given_for_a_deleted_parameter_is_found_and_freed() -> None:
    assert given_to_a_function()


def test_batch_is_freed_after_a_caught_error_was_looked_at() -> None:
    assert of_a_caught_error(4)


@pytest.mark.skipif(sys.version_info >= (3, 13), reason="locals() is a copy of its own there")
def test_function_that_has_called_locals_is_not_looked_at() -> None:
    seen = locals()
    later = 3
    with pytest.raises(ReplayError, match=r"calls locals\(\)"):
        variables_of(sys._getframe())
    assert "later" not in seen and later == 3


def with_options(options: Any) -> dict[str, Any]:
    shown = vars(options)
    return {**variables_of(sys._getframe()), "shown": shown}


def test_function_that_shows_the_attributes_of_an_object_is_looked_at() -> None:
    found = with_options(SimpleNamespace(lr=0.1))
    assert found["options"].lr == 0.1 and found["shown"] == {"lr": 0.1}


def eval(model: Any) -> Any:
    return model


def test_function_that_calls_an_eval_of_the_scripts_own_is_looked_at() -> None:
    model = eval(3)
    assert variables_of(sys._getframe())["model"] == model
