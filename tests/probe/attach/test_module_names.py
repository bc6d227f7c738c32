"""The names of a model's modules, without the generators of `named_modules`."""

from torch import nn

from probe.attach.layout import clean_name, module_names


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
