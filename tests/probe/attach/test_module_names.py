"""The names of a model's modules, without the generators of `named_modules`."""

import gc

import pytest
from torch import nn

from probe.attach.layout import clean_name, describe_model, module_names
from probe.attach.observation.modules import ModuleIndex
from probe.forensics.module_state import StateWatch


def named(root: nn.Module) -> dict[int, str]:
    return {id(module): clean_name(name) for name, module in root.named_modules()}


def test_module_names_are_those_of_named_modules_in_their_order() -> None:
    model = nn.Sequential(nn.TransformerEncoderLayer(4, 2), nn.Sequential(nn.Linear(4, 4), nn.ReLU()))
    assert list(module_names(model).items()) == list(named(model).items())


def test_shared_module_has_the_name_where_it_is_found_first() -> None:
    shared = nn.Linear(2, 2)
    model = nn.ModuleDict({"a": nn.Sequential(nn.ReLU(), shared), "b": shared, "c": nn.Sequential(shared)})
    model["c"].again = model
    assert module_names(model) == named(model)


def test_wrappers_leave_no_trace_in_module_names() -> None:
    wrapper = nn.Module()
    wrapper._checkpoint_wrapped_module = nn.Linear(2, 2)
    model = nn.Sequential(wrapper, nn.ReLU())
    model.register_module("none", None)
    assert module_names(model) == named(model)


def test_index_follows_modules_that_change_places_or_their_class() -> None:
    model = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 2))
    index = ModuleIndex()
    assert index.refresh(model)
    assert not index.refresh(model)
    first, second = model
    model[0], model[1] = second, first
    index.refresh(model)
    assert [index.find(module).row for module in (second, first)] == [1, 2]  # type: ignore[union-attr]
    first.__class__ = Plain
    assert index.refresh(model)
    assert index.infos[2].type == "Plain"


def test_index_finds_a_module_that_has_the_identity_of_one_that_is_gone() -> None:
    model = nn.Sequential(nn.Linear(2, 2))
    index = ModuleIndex()
    index.refresh(model)
    for _ in range(200):
        identity = id(model[0])
        del model[0]
        model.append(nn.Linear(2, 2))
        if id(model[0]) == identity:
            break
    else:
        pytest.skip("no module has come to lie where another had lain")
    index.refresh(model)
    assert index.find(model[0]) is not None


class Plain(nn.Linear):
    """Another class for a module."""


def test_the_garbage_collector_is_not_told_of_what_is_kept_of_each_module() -> None:
    """Thousands of objects more have it go through the whole process, in a step of the training."""
    model = nn.Sequential(*(nn.Linear(2, 2) for _ in range(50)))
    index = ModuleIndex()
    index.refresh(model)
    watch = StateWatch()
    watch.before_call(model)
    kept = [*index.traits.values(), *index.infos, *watch._before, *describe_model(model).record.layers]
    assert len(kept) == 203
    assert not any(map(gc.is_tracked, kept))


def test_equal_shapes_and_types_of_thousands_of_parameters_are_kept_once() -> None:
    model = nn.Sequential(*(nn.Linear(3, 3) for _ in range(50)), nn.Linear(3, 5).double())
    infos = describe_model(model).record.parameters
    assert [info.shape for info in infos] == [list(parameter.shape) for parameter in model.parameters()]
    assert [info.dtype for info in infos] == ["float32"] * 100 + ["float64"] * 2
    assert len({id(info.shape) for info in infos}) == 4
    assert len({id(info.dtype) for info in infos}) == 2
