"""Which module holds an optimizer's parameters, and what the script calls it."""

from __future__ import annotations

import copy
import gc
import os
import sys
import weakref
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn

from probe.calls.launch.owners import find_holders, parameters_of, trained_part, variable_name
from probe.calls.launch.sessions import RunNames
from probe.compat import all_objects


def make_pair() -> tuple[nn.Module, nn.Module]:
    return nn.Sequential(nn.Linear(2, 3)), nn.Linear(3, 1)


def sgd(*modules: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD([parameter for module in modules for parameter in module.parameters()])


def holders_of(*optimizers: torch.optim.Optimizer) -> list[nn.Module]:
    return find_holders([parameters_of(optimizer) for optimizer in optimizers], sys._getframe(1))


@pytest.fixture
def no_walks(monkeypatch: pytest.MonkeyPatch) -> None:
    """All objects may not be searched now."""
    monkeypatch.setattr(all_objects.training, "_credit_ns", -1e12)
    monkeypatch.setattr(all_objects.training, "limit", 0.02)
    monkeypatch.setattr(all_objects.training, "_is_reported", False)


class System:
    """Has the model as an attribute, and calls a part of it."""

    def __init__(self, system: nn.Module) -> None:
        self.system = system

    def find(self, optimizer: torch.optim.Optimizer, called: nn.Module | None = None) -> list[nn.Module]:
        return find_holders([parameters_of(optimizer)], sys._getframe(), called)


class HasNoAttributes:
    """As a proxy that is not connected."""

    __slots__ = ()

    def __getattr__(self, name: str) -> object:
        raise OSError(name)

    def find(self, optimizer: torch.optim.Optimizer, called: nn.Module) -> list[nn.Module]:
        return find_holders([parameters_of(optimizer)], sys._getframe(), called)


@pytest.mark.usefixtures("no_walks")
def test_holder_is_at_hand_where_all_objects_may_not_be_searched() -> None:
    model, other = make_pair()
    system = nn.ModuleDict({"model": model})
    assert System(system).find(sgd(model), model[0]) == [system]  # type: ignore[index]
    assert set(holders_of(sgd(model, other))) == {system, other}
    assert HasNoAttributes().find(sgd(model), nn.Linear(2, 2)) == [system]
    assert all_objects.training.take_declined().startswith("further models and optimizers are only found")


def test_model_that_is_made_again_needs_no_search_where_it_is_at_hand(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    system = nn.ModuleDict({"model": make_pair()[0]})
    part: nn.Module = system["model"]
    searches: list[type] = []
    found_anywhere = [system, *system.modules()]
    monkeypatch.setattr(
        all_objects.training, "instances", lambda kind: searches.append(kind) or found_anywhere
    )

    def find(called: nn.Module, kind: type[nn.Module]) -> list[nn.Module]:
        def is_awaited(model: nn.Module) -> bool:
            return type(model) is kind

        return find_holders([parameters_of(sgd(part))], None, called, is_awaited=is_awaited)

    assert find(part, nn.Sequential) == [part]
    assert find(system, nn.ModuleDict) == [system]
    assert not searches
    # It is inside of what is called: that may be the model.
    assert find(system, nn.Sequential) == [system]
    # Of another class than those before.
    assert find(part, nn.ModuleDict) == [system]
    assert len(searches) == 2


@pytest.mark.usefixtures("no_walks")
def test_called_module_is_the_holder_where_nothing_else_is_at_hand() -> None:
    models = [make_pair()[0] for _ in range(2)]
    optimizer, system = sgd(*models[:1]), System(nn.Linear(1, 1))
    assert not system.find(optimizer, models[1])
    assert system.find(optimizer, models[0]) == models[:1]


def test_holder_is_the_topmost_module() -> None:
    model, _ = make_pair()
    outer = nn.ModuleDict({"model": model})
    assert holders_of(sgd(model)) == [outer]


def test_holder_of_each_optimizer_is_its_own_model() -> None:
    first, second = make_pair()
    assert set(holders_of(sgd(first), sgd(second))) == {first, second}


def test_optimizer_of_two_models_has_two_holders() -> None:
    first, second = make_pair()
    assert set(holders_of(sgd(first, second))) == {first, second}


def test_module_that_shares_a_part_is_no_holder() -> None:
    model, other = make_pair()
    whole = nn.Sequential(model, other)
    features = nn.Sequential(*list(whole.children())[:1])
    assert holders_of(sgd(whole)) == [whole]
    assert features is not whole


def test_collection_of_models_is_no_holder_of_one_that_stands_for_itself() -> None:
    model, _ = make_pair()
    wrapper = nn.ModuleList([model[0], nn.Linear(9, 9)])  # type: ignore[index]
    assert holders_of(sgd(model)) == [model]
    assert wrapper is not None


def test_frozen_holder_is_found_at_hand_alone() -> None:
    model, other = make_pair()
    gc.freeze()
    try:
        assert find_holders([parameters_of(sgd(model))], None) == []
        assert holders_of(sgd(other)) == [other]
    finally:
        gc.unfreeze()


class Average(nn.Module):
    """Holds what is trained, and a frozen copy of it."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.online, self.average = model, copy.deepcopy(model).requires_grad_(False)

    def train_step(self) -> nn.Module:
        return part_of(self, self.online)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.average(inputs)


def part_of(holder: nn.Module, called: nn.Module, *trained: nn.Module) -> nn.Module:
    return trained_part(holder, called, [sgd(*(trained or (called,)))], sys._getframe(1))


def test_wrapper_with_a_frozen_copy_is_not_what_is_trained() -> None:
    model, _ = make_pair()
    average = Average(model)
    assert part_of(average, model) is model
    assert part_of(nn.ModuleDict({"all": average}), model) is model


def test_copy_that_was_not_frozen_is_one_all_the_same() -> None:
    model, _ = make_pair()
    both = nn.ModuleDict({"model": model, "shadow": copy.deepcopy(model)})
    assert part_of(both, model) is model


def test_several_copies_are_copies() -> None:
    model, _ = make_pair()
    shadows = nn.ModuleList([copy.deepcopy(model).requires_grad_(False) for _ in range(3)])
    assert part_of(nn.ModuleList([shadows, model]), model) is model


def test_part_whose_own_part_is_called_is_trained_as_a_whole() -> None:
    model, head = make_pair()
    whole = nn.Sequential(model, head)
    assert part_of(Average(whole), model, whole) is whole


def test_wrapper_that_is_called_or_whose_method_runs_is_the_model() -> None:
    model, _ = make_pair()
    average = Average(model)
    assert part_of(average, average, model) is average
    assert part_of(average, nn.Sequential(average), model) is average
    assert average.train_step() is average


def test_frozen_backbone_is_no_copy() -> None:
    backbone, head = make_pair()
    both = nn.ModuleDict({"backbone": backbone.requires_grad_(False), "head": head})
    assert part_of(both, backbone, head) is both
    assert part_of(both, head) is both


def test_copy_that_learns_too_is_a_second_model() -> None:
    first, _ = make_pair()
    second = copy.deepcopy(first)
    both = nn.ModuleList([first, second])
    assert part_of(both, first, first, second) is both


def test_part_beside_others_that_learn_is_not_the_model() -> None:
    model, head = make_pair()
    both = nn.ModuleDict({"model": model, "head": head})
    assert part_of(both, model) is both
    assert part_of(both, model, model, head) is both


def test_wrapper_of_one_module_stays() -> None:
    model, _ = make_pair()
    holder = nn.ModuleDict({"model": model})
    assert part_of(holder, model) is holder


# pytest's own `assert` reads the locals of the functions that have one: these have none.


class Trainer:
    def __init__(self, model: nn.Module) -> None:
        self.net = model

    def name(self) -> str | None:
        return variable_name([self.net], sys._getframe())


def name_in_function(inside: nn.Module) -> str | None:
    return variable_name([inside], sys._getframe())


def name_after_evaluation(inside: nn.Module) -> str | None:
    inside.eval()
    return variable_name([inside], sys._getframe())


def name_and_kept_locals(inside: nn.Module) -> tuple[str | None, dict[str, object]]:
    kept = locals()
    name = variable_name([inside], sys._getframe())
    return name, kept


def name_and_evaluated_text(inside: nn.Module) -> tuple[str | None, object]:
    name = variable_name([inside], sys._getframe())
    return name, eval("1")  # noqa: S307 - a constant


def name_that_is_not_taken(module: nn.Module) -> str | None:
    critic = module
    return (lambda inside: variable_name([inside], sys._getframe(), taken={"inside", "module"}))(critic)


class Unusual(nn.Module):
    def name(this) -> str | None:  # noqa: N805 - what the test is of
        return variable_name([this], sys._getframe())


def name_of_outer_variable() -> str | None:
    outer = nn.Linear(1, 1)
    return (lambda: variable_name([outer], sys._getframe().f_back))()


class Batch:
    pass


def name_and_what_is_kept(model: nn.Module) -> tuple[str | None, object]:
    batch = Batch()
    gone = weakref.ref(batch)
    name = variable_name([model], sys._getframe())
    del batch
    return name, gone()


def test_variable_is_the_innermost_frames_own_or_an_attribute_of_self() -> None:
    assert name_in_function(nn.Linear(1, 1)) == "inside"
    assert name_after_evaluation(nn.Linear(1, 1)) == "inside"
    assert name_of_outer_variable() == "outer"
    assert Trainer(nn.Linear(1, 1)).name() == "net"
    assert variable_name([nn.Linear(1, 1)], sys._getframe()) is None


def test_variable_that_names_another_model_already_is_passed_over() -> None:
    assert name_that_is_not_taken(nn.Linear(1, 1)) == "critic"


def test_first_argument_of_a_method_is_no_name() -> None:
    assert Unusual().name() is None


def test_locals_that_a_function_has_taken_are_not_touched() -> None:
    """Then it is this function's variable that has the name: it calls nothing that reads its own."""
    model = nn.Linear(1, 1)
    assert name_and_kept_locals(model) == ("model", {"inside": model})
    assert name_and_evaluated_text(model) == ("model", 1)


def test_looking_for_a_variable_keeps_no_value_of_the_frame_alive() -> None:
    assert name_and_what_is_kept(nn.Linear(1, 1)) == ("model", None)


def test_run_names_differ_by_model_and_stay_within_64_characters() -> None:
    names = RunNames("r" * 60, 1)
    environment = {"NANSCOPE_RUN": "x" * 60}
    ids = [names.next_id(model, environment) for model in ("net", "the judge!", "the judge!")]
    assert ids == ["x" * 60, "x" * 53 + "-the_judge_", "x" * 51 + "-the_judge_-2"]


def test_run_id_of_another_process_of_the_launch_carries_its_pid() -> None:
    assert RunNames("launch", os.getpid()).next_id("net", {}) == "launch"
    assert RunNames("launch", -1).next_id("net", {}) == f"launch-{os.getpid()}"


def test_threads_that_ask_at_the_same_time_get_different_ids() -> None:
    names, before = RunNames("launch", os.getpid()), sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(8) as pool:
            found = list(pool.map(lambda _: names.next_id("model", {}), range(200)))
    finally:
        sys.setswitchinterval(before)
    assert len(set(found)) == 200
