"""Activation statistics against plain forward hooks and float64 arithmetic."""

import math
from collections import OrderedDict

import numpy as np
import pytest
import torch
from observed_steps import Watched, hooked_outputs, seeded
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence
from torch.utils.checkpoint import checkpoint

from probe.attach.observation.module_statistics import ModuleStatistics
from probe.attach.observation.modules import saturation_bounds
from probe.attach.observation.tensor_rows import TensorRows
from probe.measure.statistics.magnitudes import log2_histograms
from probe.wire.module_frames import MODULE_COLUMNS, MODULE_STATES


class Net(nn.Module):
    """Containers, an in-place activation, a shared module and one that is called twice."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6), nn.ReLU(inplace=True))
        self.inner = nn.Linear(6, 6)
        self.same = self.inner
        self.squash = nn.Tanh()
        self.head = nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x).mean(dim=(2, 3))
        return self.head(self.squash(5 * self.same(self.inner(x))))


def images() -> Tensor:
    return torch.randn(5, 3, 8, 8, generator=torch.Generator().manual_seed(1))


def assert_matches(found: ModuleStatistics, name: str, outputs: list[Tensor]) -> None:
    every = torch.cat([output.reshape(-1) for output in outputs])
    expected = {
        "calls": len(outputs),
        "activation_rms": float(every.square().mean().sqrt()),
        "activation_max_abs": float(every.abs().max()),
        "activation_mean": float(every.mean()),
        "activation_std": float(every.std(correction=0)),
        "activation_zero_fraction": float((every == 0).double().mean()),
    }
    for column, value in expected.items():
        assert found.value(column, name) == pytest.approx(value, rel=1e-5, abs=1e-7), (name, column)


def test_activations_of_every_module_match_plain_hooks() -> None:
    model = seeded(Net)
    outputs = hooked_outputs(model, lambda: model(images()))
    found = Watched(model).step(images())
    assert [info.name for info in found.modules] == [name for name, _ in model.named_modules()]
    # An in-place ReLU overwrites what the norm before it returned; both are measured as they were returned.
    for name, values in outputs.items():
        assert_matches(found, name, values)
    assert found.value("calls", "inner") == 2
    assert set(found.columns) <= set(MODULE_COLUMNS)


def test_output_that_containers_hand_on_is_measured_once(monkeypatch: pytest.MonkeyPatch) -> None:
    measured = []
    real = TensorRows.measure
    monkeypatch.setattr(
        TensorRows,
        "measure",
        lambda rows, tensor, bounds: measured.append(tensor) or real(rows, tensor, bounds),
    )
    model = nn.Sequential(nn.Sequential(nn.Linear(2, 2)), nn.Sequential(nn.Sequential(nn.ReLU())))
    Watched(model).step(torch.ones(1, 2), due=("activations", "module_times"))
    assert len(measured) == 2


def test_activations_over_micro_steps_are_combined_exactly() -> None:
    model = seeded(lambda: nn.Sequential(nn.Linear(4, 8), nn.ReLU()))
    watched, batches = Watched(model), [torch.randn(n, 4) + n for n in (1, 7, 3)]
    for batch in batches:
        watched.forward(batch).sum().backward()
        watched.observer.end_backward()
    outputs = hooked_outputs(model, lambda: [model(batch) for batch in batches])
    found = watched.collect()
    assert_matches(found, "0", outputs["0"])
    assert_matches(found, "1", outputs["1"])


def test_activations_with_single_calls_have_a_row_for_each() -> None:
    model = seeded(Net)
    outputs = hooked_outputs(model, lambda: model(images()))["inner"]
    found = Watched(model).step(images(), due=("activations", "module_calls"))
    names = [info.name for info in found.modules]
    assert found.rows is not None
    at = np.flatnonzero(found.rows == names.index("inner"))
    expected = [float(output.square().mean().sqrt()) for output in outputs]
    assert found.columns["activation_rms"][at] == pytest.approx(expected, rel=1e-6)
    assert [names[row] for row in found.rows[:3]] == ["", "stem", "stem.0"]


def test_activations_of_nan_and_inf_are_counted_and_propagate() -> None:
    class Poison(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            x = x.clone()
            x[0, 0], x[0, 1], x[1, 0] = math.nan, math.inf, -math.inf
            return x

    found = Watched(nn.Sequential(Poison(), nn.Linear(3, 2))).step(torch.ones(2, 3))
    assert found.value("activation_nan_count", "0") == 1
    assert found.value("activation_inf_count", "0") == 2
    rms = found.value("activation_rms", "0")
    assert rms is not None and math.isnan(rms)


@pytest.mark.parametrize(
    ("module", "given", "saturated"),
    [
        (nn.Tanh(), [0.0, 2.5, 3.5, -9.0], 0.5),
        (nn.Sigmoid(), [0.0, 5.0, 7.0, -7.0], 0.5),
        (nn.ReLU6(), [-1.0, 3.0, 6.0, 8.0], 0.5),
        (nn.Hardtanh(-2, 2), [-3.0, 0.0, 1.0, 2.0], 0.5),
        (nn.Identity(), [0.0, 1.0, 1e38, 3e38], 0.25),
        (nn.ReLU(), [0.0, 0.0, 1.0, 2.0], 0.0),
    ],
)
def test_saturated_fraction_depends_on_the_modules_type(
    module: nn.Module, given: list[float], saturated: float
) -> None:
    x = torch.tensor([given], requires_grad=True)
    assert (
        Watched(module).step(x, loss=lambda y: y.mean()).value("activation_saturated_fraction", "")
        == saturated
    )


def test_saturation_of_half_precision_is_near_its_largest_number() -> None:
    low, high = saturation_bounds(nn.Linear(1, 1), torch.zeros(1, dtype=torch.float16)) or (0, 0)
    assert (low, high) == (-32752, 32752)


def test_dead_units_are_those_without_activity_in_the_whole_window() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.ReLU())
    with torch.no_grad():
        model[0].weight.copy_(torch.eye(3))
        model[0].bias.zero_()
    watched = Watched(model, dead_after=3)
    steps = [[[1.0, -1.0, -1.0]], [[-1.0, -1.0, -1.0]], [[-1.0, -1.0, 1.0]], [[-1.0, -1.0, -1.0]]]
    dead = [watched.step(torch.tensor(step)).value("dead_units", "1") for step in steps]
    # Of three units the first was active at step 0, the last at step 2, the middle one never.
    assert dead == [None, None, 1, 2]
    assert watched.step(torch.ones(1, 3)).value("units", "1") == 3


def test_dead_channels_of_a_convolution_are_counted_along_its_channels() -> None:
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU())
    with torch.no_grad():
        model[0].bias.copy_(torch.tensor([-99.0, 99.0, -99.0, 99.0]))
    found = Watched(model, dead_after=1).step(torch.randn(2, 1, 9, 5))
    assert (found.value("units", "1"), found.value("dead_units", "1")) == (4, 2)


def test_histogram_counts_the_outputs_by_magnitude() -> None:
    model = seeded(Net)
    outputs = hooked_outputs(model, lambda: model(images()))
    found = Watched(model).step(images())
    assert found.activation_histogram is not None
    for row, info in enumerate(found.modules):
        expected = log2_histograms([output.float() for output in outputs[info.name]]).sum(axis=0)
        assert np.array_equal(found.activation_histogram[row], expected), info.name


class Odd(nn.Module):
    """Returns whatever it is told to."""

    def __init__(self, output: object) -> None:
        super().__init__()
        self.output = output

    def forward(self, x: Tensor) -> object:
        return self.output


class Holder:
    def __init__(self, value: Tensor) -> None:
        self.value = value


@pytest.mark.parametrize(
    ("output", "rms"),
    [
        (None, None),
        ("text", None),
        (torch.arange(3), None),
        ((1, [torch.full((3,), 2.0)]), 2.0),
        (OrderedDict(loss=torch.ones(()), logits=torch.full((2,), 4.0)), 4.0),
        (Holder(torch.full((3,), 5.0)), 5.0),
        (torch.eye(2).to_sparse(), None),
        (torch.empty(0), None),
        (torch.ones(2, device="meta"), None),
        (iter([1]), None),
    ],
)
def test_outputs_of_any_kind_are_looked_into_or_left_alone(output: object, rms: float | None) -> None:
    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.odd, self.real = Odd(output), nn.Linear(2, 2)

        def forward(self, x: Tensor) -> Tensor:
            assert self.odd(x) is output
            return self.real(x)

    found = Watched(Outer()).step(torch.ones(1, 2))
    assert found.value("activation_rms", "odd") == (rms and pytest.approx(rms))
    state = MODULE_STATES[found.states[1]]
    assert state == ("observed" if rms is not None else "no tensor")


def test_packed_sequences_and_recurrent_modules_are_measured_by_their_data() -> None:
    class Reader(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.pack, self.lstm = nn.Identity(), nn.LSTM(4, 3)

        def forward(self, x: PackedSequence) -> Tensor:
            return self.lstm(self.pack(x))[0].data

    model = seeded(Reader)
    packed = pack_padded_sequence(torch.randn(6, 3, 4), [6, 4, 1])
    outputs = hooked_outputs(model, lambda: model(packed))
    found = Watched(model).step(packed)
    assert_matches(found, "pack", outputs["pack"])
    assert_matches(found, "lstm", outputs["lstm"])


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_checkpointed_modules_are_observed_once(use_reentrant: bool) -> None:
    class Checkpointed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Linear(4, 4)
            self.block = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Dropout(0.5))

        def forward(self, x: Tensor) -> Tensor:
            return checkpoint(self.block, self.first(x), use_reentrant=use_reentrant)

    torch.manual_seed(0)
    model = Checkpointed()
    torch.manual_seed(1)
    outputs = hooked_outputs(model, lambda: model(torch.ones(3, 4)))
    torch.manual_seed(1)
    found = Watched(model).step(torch.ones(3, 4))
    for name, values in outputs.items():
        assert_matches(found, name, values)
    has_gradient = found.value("activation_gradient_norm", "block.0") is not None
    assert has_gradient is not use_reentrant


def test_compiled_module_is_observed_at_its_border() -> None:
    model = seeded(Net)
    model.stem = torch.compile(model.stem, backend="aot_eager")
    watched = Watched(model)
    for _ in range(2):
        found = watched.step(images())
    states = {
        info.name: MODULE_STATES[state] for info, state in zip(found.modules, found.states, strict=True)
    }
    assert states["stem"] == "observed"
    assert states["inner"] == "observed"


def test_children_of_a_compiled_module_are_not_claimed_to_be_idle() -> None:
    class Pair(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.unused = nn.Linear(6, 6), nn.Linear(6, 6)

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(x).relu()

    class Root(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.pair, self.idle, self.head = Pair(), nn.Linear(1, 1), nn.Linear(6, 2)
            self.pair.compile(backend="aot_eager")

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.pair(x))

    watched = Watched(seeded(Root))
    for _ in range(2):
        found = watched.step(torch.randn(3, 6))
    states = {
        info.name: MODULE_STATES[state] for info, state in zip(found.modules, found.states, strict=True)
    }
    assert states == {
        "": "observed",
        "pair": "observed",
        "pair.layer": "inside a compiled graph",
        "pair.unused": "inside a compiled graph",
        "idle": "not called",
        "head": "observed",
    }
