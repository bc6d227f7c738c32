"""`UpdateMeter` against the difference of two copies in float64, in every way that an update can go."""

import sys
from typing import ClassVar

import numpy as np
import pytest
import torch
from cuda_waits import cuda_waits_are_errors
from torch import Tensor, nn

from probe.measure.parameter_copy import ParameterCopy
from probe.measure.update_meter import UpdateMeter, UpdateRatios


def model(dtype: torch.dtype = torch.float32) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 200), nn.LayerNorm(200), nn.Linear(200, 100), nn.Conv2d(3, 4, 3)).to(
        dtype
    )


def fill_gradients(parameters: list[nn.Parameter], scale: float = 1.0) -> None:
    generator = torch.Generator().manual_seed(2)
    for parameter in parameters:
        gradient = torch.randn(parameter.shape, generator=generator) * scale
        parameter.grad = gradient.to(parameter.dtype)


def measured(
    meter: UpdateMeter, parameters: list[nn.Parameter], optimizer: torch.optim.Optimizer
) -> UpdateRatios:
    meter.before(parameters)
    optimizer.step()
    meter.after(parameters, step=7)
    found = meter.read()
    assert found is not None
    return found


def reference(before: list[Tensor], after: list[nn.Parameter]) -> np.ndarray:
    """Ratios in float64, NaN where the parameter was 0."""
    pairs = zip(before, after, strict=True)
    return np.array([float((b.detach().double() - a.double()).norm() / a.double().norm()) for a, b in pairs])


@pytest.mark.parametrize(
    ("dtype", "tolerance"),
    [(torch.float32, 1e-5), (torch.float64, 1e-12), (torch.bfloat16, 1e-2), (torch.float16, 1e-2)],
)
def test_ratios_are_those_of_two_copies(dtype: torch.dtype, tolerance: float) -> None:
    parameters = list(model(dtype).parameters())
    optimizer = torch.optim.SGD(parameters, lr=0.01)
    fill_gradients(parameters)
    before = [parameter.detach().clone() for parameter in parameters]
    found = measured(UpdateMeter(), parameters, optimizer)
    expected = reference(before, parameters)
    has_size = np.array([bool(value.any()) for value in before])
    assert list(found.ratio.missing) == list(~has_size)
    assert found.ratio.values[has_size] == pytest.approx(expected[has_size], rel=tolerance)
    assert found.step == 7


def test_norms_that_are_known_already_are_taken() -> None:
    parameters = list(model().parameters())
    fill_gradients(parameters)
    norms = np.array([float(parameter.detach().norm()) for parameter in parameters])
    ratios = []
    for given in (None, norms, norms * 2):
        meter = UpdateMeter()
        meter.before(parameters, norms=given)
        with torch.no_grad():
            parameters[0].mul_(0.5)
        meter.after(parameters, step=0)
        found = meter.read()
        assert found is not None
        ratios.append(found.ratio.values[0])
        with torch.no_grad():
            parameters[0].mul_(2.0)
    assert ratios == pytest.approx([0.5, 0.5, 0.25], rel=1e-6)


def test_total_is_the_ratio_over_all_parameters_together() -> None:
    parameters = list(model().parameters())
    optimizer = torch.optim.Adam(parameters, lr=0.01)
    fill_gradients(parameters)
    before = torch.cat([parameter.detach().flatten() for parameter in parameters]).double()
    found = measured(UpdateMeter(), parameters, optimizer)
    after = torch.cat([parameter.detach().flatten() for parameter in parameters]).double()
    assert found.total == pytest.approx(float((after - before).norm() / before.norm()), rel=1e-5)


def test_repeated_measurements_reuse_the_copy_and_see_each_update() -> None:
    parameters = list(model().parameters())
    optimizer = torch.optim.SGD(parameters, lr=0.01)
    meter = UpdateMeter()
    fill_gradients(parameters)
    first = measured(meter, parameters, optimizer)
    held, views = meter.bytes_held, [view.data_ptr() for view in meter._copy.views.values()]  # type: ignore[union-attr]
    fill_gradients(parameters, scale=3.0)
    second = measured(meter, parameters, optimizer)
    assert [view.data_ptr() for view in meter._copy.views.values()] == views  # type: ignore[union-attr]
    assert meter.bytes_held == held == sum(p.numel() * p.element_size() for p in parameters)
    assert second.total == pytest.approx(3 * (first.total or 0), rel=0.05)


def test_places_for_c_leave_no_views_and_later_ones_lie_there_again() -> None:
    """Of 2,000 parameters the views take 0.8 MiB, which C has no use for."""
    parameters = list(model().parameters())
    optimizer = torch.optim.SGD(parameters, lr=0.01)
    meter = UpdateMeter()
    fill_gradients(parameters)
    expected = measured(meter, parameters, optimizer)
    before = {index: view.data_ptr() for index, view in meter._copy.views.items()}  # type: ignore[union-attr]
    places = meter.places(parameters, set(map(id, parameters)))
    assert places is not None and not places.copy.cut
    assert dict(enumerate(places.addresses)) == before
    assert list(places.sizes) == [parameter.nbytes for parameter in parameters]
    fill_gradients(parameters)
    again = measured(meter, parameters, optimizer)
    assert {index: view.data_ptr() for index, view in places.copy.views.items()} == before
    assert again.total == pytest.approx(expected.total, rel=0.05)


def test_copy_of_host_parameters_has_no_history_or_version() -> None:
    parameters = list(model().parameters())
    fill_gradients(parameters)
    meter = UpdateMeter()
    meter.before(parameters)
    assert all(view.is_inference() for view in meter._copy.views.values())  # type: ignore[union-attr]


def test_first_copy_makes_one_tensor_a_parameter_and_compares_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 2,000 parameters this is half of what the probe takes of the first step."""
    model = nn.Sequential(*(nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4)) for _ in range(20)))
    model(torch.ones(2, 4)).sum().backward()
    parameters = list(model.parameters())
    names: list[str] = []
    monkeypatch.setattr(ParameterCopy, "unchanged", lambda *_: pytest.fail("compared with itself"))
    sys.setprofile(lambda _, event, called: names.append(called.__name__) if event == "c_call" else None)
    try:
        UpdateMeter().before(parameters)
    finally:
        sys.setprofile(None)
    assert names.count("view") == sum(parameter.dim() > 1 for parameter in parameters) == 20


def test_parameter_without_gradient_is_missing() -> None:
    parameters = list(model().parameters())
    fill_gradients(parameters)
    parameters[0].grad = None
    found = measured(UpdateMeter(), parameters, torch.optim.SGD(parameters, lr=0.01))
    assert found.ratio.missing[0]
    assert not found.ratio.missing[2]


def test_parameter_of_another_optimizer_is_missing() -> None:
    parameters = list(model().parameters())
    fill_gradients(parameters)
    meter = UpdateMeter()
    for step, (mine, others) in enumerate(
        [(parameters[:2], parameters[2:]), (parameters[2:], parameters[:2])]
    ):
        meter.before(parameters, updated={id(parameter) for parameter in mine})
        torch.optim.SGD(mine, lr=0.01).step()
        meter.after(parameters, step=step)
        found = meter.read()
        assert found is not None
        missing = dict(zip(map(id, parameters), found.ratio.missing, strict=True))
        assert all(missing[id(parameter)] for parameter in others)
        assert not all(missing[id(parameter)] for parameter in mine)


def test_updates_of_several_optimizers_at_one_step_are_put_together() -> None:
    parameters = list(model().parameters())
    fill_gradients(parameters)
    before = [parameter.detach().clone() for parameter in parameters]
    meter, found = UpdateMeter(), None
    for mine in (parameters[:2], parameters[2:3], parameters[3:]):
        meter.before(parameters, updated={id(parameter) for parameter in mine})
        torch.optim.SGD(mine, lr=0.01).step()
        meter.after(parameters, step=1)
        found = meter.read()
    assert found is not None
    expected = reference(before, parameters)
    known = ~found.ratio.missing
    assert known.sum() >= 7
    assert found.ratio.values[known] == pytest.approx(expected[known], rel=1e-5)
    whole = [torch.cat([p.detach().flatten() for p in tensors]).double() for tensors in (before, parameters)]
    assert found.total == pytest.approx(float((whole[1] - whole[0]).norm() / whole[0].norm()), rel=1e-5)


def test_optimizers_of_one_parameter_each_are_measured_like_one_of_all() -> None:
    parameters = list(model().parameters())
    fill_gradients(parameters)
    before = [parameter.detach().clone() for parameter in parameters]
    meter, found = UpdateMeter(), None
    for parameter in reversed(parameters):
        meter.before(parameters, updated={id(parameter)})
        torch.optim.SGD([parameter], lr=0.01).step()
        meter.after(parameters, step=5)
        found = meter.read()
    assert found is not None
    known = ~found.ratio.missing
    assert known.sum() >= 7
    assert found.ratio.values[known] == pytest.approx(reference(before, parameters)[known], rel=1e-5)


def test_lists_made_anew_reuse_the_copy_of_the_same_parameters() -> None:
    parameters = list(model().parameters())
    fill_gradients(parameters)
    meter = UpdateMeter()
    buffers = set()
    for _ in range(3):
        meter.before(list(parameters))
        meter.after(list(parameters), step=0)
        assert meter.read() is not None
        buffers.add(id(meter._copy))
    assert len(buffers) == 1


def test_other_parameters_after_than_before_are_not_compared() -> None:
    parameters = list(model().parameters())
    fill_gradients(parameters)
    meter = UpdateMeter()
    meter.before(parameters)
    meter.after(list(model().parameters()), step=0)
    assert meter.read() is None


def test_parameter_of_a_lazy_module_is_left_out_until_it_has_a_shape() -> None:
    network = nn.Sequential(nn.LazyLinear(3), nn.Linear(3, 2))
    parameters = list(network.parameters())
    meter = UpdateMeter()
    parameters[2].grad = torch.ones(2, 3)
    meter.before(parameters)
    meter.after(parameters, step=0)
    found = meter.read()
    assert found is not None
    assert list(found.ratio.missing) == [True, True, False, True]
    network(torch.ones(4, 5)).sum().backward()
    before = [parameter.detach().clone() for parameter in parameters]
    found = measured(meter, parameters, torch.optim.SGD(parameters, lr=0.1))
    assert found.ratio.values[0] == pytest.approx(reference(before, parameters)[0], rel=1e-5)


class LateCopy:
    """Stands in for a copy from a device: arrives when told."""

    made: ClassVar[list["LateCopy"]] = []

    def __init__(self, tensor: Tensor) -> None:
        self.is_ready, self._tensor = False, tensor.clone()
        self.made.append(self)

    def read(self) -> Tensor:
        assert self.is_ready, "this would have waited for the device"
        return self._tensor


def test_result_that_is_still_on_its_way_is_not_waited_for() -> None:
    parameters = [nn.Parameter(torch.ones(5))]
    fill_gradients(parameters)
    meter = UpdateMeter(start_copy=LateCopy)
    LateCopy.made.clear()
    for step in range(2):
        meter.before(parameters)
        with torch.no_grad():
            parameters[0].mul_(0.5)
        meter.after(parameters, step=step, found_inf=torch.zeros(()))
        assert meter.read() is None
    for copy in LateCopy.made:
        copy.is_ready = True
    found = [meter.read(), meter.read(), meter.read()]
    assert [None if one is None else one.step for one in found] == [0, 1, None]


def test_update_that_moved_nothing_is_a_real_zero() -> None:
    parameters = list(model().parameters())
    fill_gradients(parameters)
    found = measured(UpdateMeter(), parameters, torch.optim.SGD(parameters, lr=0.0))
    assert found.total == 0
    assert not found.ratio.missing[0]
    assert not found.ratio.values.any()


def test_update_that_was_skipped_gives_nothing() -> None:
    parameters = list(model().parameters())
    fill_gradients(parameters)
    meter = UpdateMeter()
    meter.before(parameters)
    meter.cancel()
    meter.after(parameters, step=0)
    assert meter.read() is None


@pytest.mark.parametrize("overflow", [False, True])
def test_fused_optimizer_that_left_out_its_update_gives_nothing(overflow: bool) -> None:
    parameters = [nn.Parameter(torch.ones(5))]
    optimizer = torch.optim.AdamW(parameters, lr=0.1, fused=True)
    scaler, meter, seen = torch.amp.GradScaler("cpu"), UpdateMeter(), []

    def before(*_: object) -> None:
        meter.before(parameters)

    def after(stepped: torch.optim.Optimizer, *_: object) -> None:
        seen.append(getattr(stepped, "found_inf", None))
        meter.after(parameters, step=0, found_inf=seen[-1])

    optimizer.register_step_pre_hook(before)
    optimizer.register_step_post_hook(after)
    scaler.scale(parameters[0].sum() * (float("inf") if overflow else 1.0)).backward()
    scaler.step(optimizer)
    assert isinstance(seen[0], Tensor), "torch no longer tells a fused optimizer of an overflow"
    found = meter.read()
    assert (found is None) is overflow


@pytest.mark.parametrize("change", ["dtype", "size"])
def test_parameter_converted_amid_the_update_is_missing_and_said_so(change: str) -> None:
    parameters = list(model().parameters())
    fill_gradients(parameters)
    meter = UpdateMeter()
    meter.before(parameters)
    parameters[0].data = parameters[0].data.double() if change == "dtype" else torch.ones(3)
    meter.after(parameters, step=0)
    found = meter.read()
    assert found is not None
    assert found.ratio.missing[0]
    assert not found.ratio.missing[1]
    assert meter.reason == "1 of 8 parameters not compared: moved or converted during the update"


def test_model_converted_between_measurements_is_measured_in_its_new_type() -> None:
    network, meter = model(), UpdateMeter()
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        network.to(dtype)
        parameters = list(network.parameters())
        fill_gradients(parameters)
        before = [parameter.detach().clone() for parameter in parameters]
        found = measured(meter, parameters, torch.optim.SGD(parameters, lr=0.01))
        assert found.ratio.values[0] == pytest.approx(reference(before, parameters)[0], rel=1e-2)
        assert meter.bytes_held == sum(p.numel() * p.element_size() for p in parameters)


def test_parameters_beyond_the_memory_limit_are_left_out_smallest_first() -> None:
    parameters = list(model().parameters())
    fill_gradients(parameters)
    largest = min(index for index in range(8) if parameters[index].dim() == 2 and index)
    assert largest == max(range(len(parameters)), key=lambda index: parameters[index].numel())
    others = sum(p.numel() * 4 for index, p in enumerate(parameters) if index != largest)
    limit = parameters[largest].numel() * 4
    assert others < limit, "largest first, there would be room for it alone"
    meter = UpdateMeter(limit_bytes=limit)
    found = measured(meter, parameters, torch.optim.SGD(parameters, lr=0.01))
    assert found.ratio.missing[largest]
    assert list(found.ratio.missing[[0, 1, 2]]) == [False] * 3, "smaller ones have room"
    assert meter.bytes_held == others
    assert meter.reason == f"1 of 8 parameters not compared: a copy may take {limit / 2**20:.3g} MiB"


ODD = {
    "complex": torch.ones(4, dtype=torch.complex64),
    "empty": torch.ones(0),
    "scalar": torch.tensor(2.0),
    "channels_last": torch.arange(120.0).view(2, 3, 4, 5).to(memory_format=torch.channels_last),
    "expanded": torch.ones(1).expand(4),
    "meta": torch.ones(3, device="meta"),
}


@pytest.mark.parametrize("kind", ODD)
def test_odd_parameter_is_measured_or_missing_and_spoils_no_other(kind: str) -> None:
    odd = nn.Parameter(ODD[kind].clone() if kind != "expanded" else ODD[kind])
    plain = nn.Parameter(torch.full((3,), 2.0))
    for parameter in (odd, plain):
        parameter.grad = torch.ones_like(parameter)
    meter = UpdateMeter()
    meter.before([odd, plain])
    if kind not in ("meta", "empty", "expanded"):
        with torch.no_grad():
            odd.mul_(1.5)
    with torch.no_grad():
        plain.mul_(1.25)
    meter.after([odd, plain], step=0)
    found = meter.read()
    assert found is not None
    assert found.ratio.values[1] == pytest.approx(0.25)
    if kind in ("meta", "empty"):
        assert found.ratio.missing[0]
    else:
        assert found.ratio.values[0] == pytest.approx(0.0 if kind == "expanded" else 0.5, rel=1e-6)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_update_that_ruins_a_parameter_shows_as_not_finite(bad: float) -> None:
    parameters = [nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(3))]
    fill_gradients(parameters)  # type: ignore[arg-type]
    parameters[0].grad.fill_(bad)  # type: ignore[union-attr]
    found = measured(UpdateMeter(), parameters, torch.optim.SGD(parameters, lr=1.0))
    assert not np.isfinite(found.ratio.values[0])
    assert not found.ratio.missing[0]
    assert np.isfinite(found.ratio.values[1])


def test_measuring_leaves_parameters_gradients_and_versions_alone() -> None:
    parameters = list(model().parameters())
    fill_gradients(parameters)
    state = [(p.detach().clone(), p._version, p.grad.clone()) for p in parameters]  # type: ignore[union-attr]
    meter = UpdateMeter()
    meter.before(parameters)
    meter.after(parameters, step=0)
    for parameter, (value, version, gradient) in zip(parameters, state, strict=True):
        assert torch.equal(parameter.detach(), value)
        assert torch.equal(parameter.grad, gradient)  # type: ignore[arg-type]
        assert parameter._version == version
        assert parameter.requires_grad


def test_release_lets_go_of_the_copy() -> None:
    parameters = list(model().parameters())
    fill_gradients(parameters)
    meter = UpdateMeter()
    meter.before(parameters)
    meter.release()
    assert meter.bytes_held == 0
    meter.after(parameters, step=0)
    assert meter.read() is None


def test_after_without_before_and_read_twice_give_nothing() -> None:
    parameters = list(model().parameters())
    fill_gradients(parameters)
    meter = UpdateMeter()
    meter.after(parameters, step=0)
    assert meter.read() is None
    measured(meter, parameters, torch.optim.SGD(parameters, lr=0.1))
    assert meter.read() is None


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_ratios_on_cuda_come_later_without_waiting() -> None:
    parameters = list(model().cuda().parameters())
    for parameter in parameters:
        parameter.grad = torch.ones_like(parameter)
    before = [parameter.detach().clone() for parameter in parameters]
    meter, optimizer = UpdateMeter(), torch.optim.SGD(parameters, lr=0.01)
    with cuda_waits_are_errors():
        meter.before(parameters)
        optimizer.step()
        meter.after(parameters, step=3)
    found = meter.read(wait=True)
    assert found is not None
    expected = reference(before, parameters)
    assert found.ratio.values[0] == pytest.approx(expected[0], rel=1e-4)
