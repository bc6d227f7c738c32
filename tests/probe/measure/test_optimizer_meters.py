"""`LearningRates` and `LossScale` against real optimizers and torch's real GradScaler."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from probe.compat.host_copy import HostCopy, LatestValue
from probe.measure.optimizer_meters import MAX_GROUPS, LearningRates, LossScale


class SlowCopy:
    """Stands in for a copy from a device: arrives when told, and says what was read meanwhile."""

    def __init__(self, value: float) -> None:
        self.is_ready, self._value = False, value

    def read(self) -> Tensor:
        assert self.is_ready, "this would have waited for the device"
        return torch.tensor(self._value)


class Device:
    """A device whose values reach the host late; its tensors are of the `meta` device, not to be read."""

    def __init__(self) -> None:
        self.value, self.copies = 0.0, list[SlowCopy]()
        self.tensor = torch.empty((), device="meta")

    def start_copy(self, tensor: Tensor) -> SlowCopy:
        assert tensor.device.type == "meta"
        self.copies.append(SlowCopy(self.value))
        return self.copies[-1]

    def arrive(self) -> None:
        for copy in self.copies:
            copy.is_ready = True


def parameter() -> nn.Parameter:
    return nn.Parameter(torch.ones(2))


def rates(*groups: dict[str, Any]) -> dict[str, float]:
    return LearningRates().read([torch.optim.SGD([{"params": [parameter()], **group} for group in groups])])


# -- learning rates


def test_rate_of_one_group_is_lr() -> None:
    assert rates({"lr": 0.1}) == {"lr": 0.1}


def test_rates_that_are_equal_are_one_series() -> None:
    assert rates({"lr": 0.1}, {"lr": 0.1}) == {"lr": 0.1}


def test_rates_that_differ_are_numbered_over_all_optimizers() -> None:
    optimizers = [torch.optim.SGD([parameter()], lr=0.1), torch.optim.Adam([parameter()], lr=0.2)]
    assert LearningRates().read(optimizers) == {"lr/0": 0.1, "lr/1": 0.2}


def test_rates_take_the_name_that_the_script_gave_its_group() -> None:
    named = rates({"lr": 0.1, "name": "backbone"}, {"lr": 0.2}, {"lr": 0.3, "name": "backbone"})
    assert named == {"lr/backbone": 0.1, "lr/1": 0.2, "lr/2": 0.3}


def test_rates_that_once_differed_keep_their_names() -> None:
    optimizer = torch.optim.SGD([{"params": [parameter()], "lr": rate} for rate in (0.1, 0.2)])
    meter = LearningRates()
    assert set(meter.read([optimizer])) == {"lr/0", "lr/1"}
    for group in optimizer.param_groups:
        group["lr"] = 0.0
    assert meter.read([optimizer]) == {"lr/0": 0.0, "lr/1": 0.0}


def test_rates_follow_a_scheduler() -> None:
    optimizer = torch.optim.SGD([parameter()], lr=1.0)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.5)
    meter, seen = LearningRates(), []
    for _ in range(3):
        seen.append(meter.read([optimizer])["lr"])
        optimizer.step()
        scheduler.step()
    assert seen == [1.0, 0.5, 0.25]


def test_rates_of_very_many_groups_are_their_range() -> None:
    many = rates(*({"lr": 0.01 * (index + 1)} for index in range(MAX_GROUPS + 1)))
    assert many == pytest.approx({"lr/min": 0.01, "lr/max": 0.01 * (MAX_GROUPS + 1)})


def test_rate_in_a_cpu_tensor_is_read_at_once() -> None:
    optimizer = torch.optim.Adam([parameter()], lr=torch.tensor(0.25), capturable=False, foreach=False)
    assert LearningRates().read([optimizer]) == {"lr": 0.25}


def test_rate_on_a_device_is_read_later_and_never_waited_for() -> None:
    device = Device()
    optimizer = torch.optim.SGD([parameter()], lr=0.1)
    optimizer.param_groups[0]["lr"] = device.tensor
    meter = LearningRates(device.start_copy)
    device.value = 0.5
    assert meter.read([optimizer]) == {}
    assert meter.read([optimizer]) == {}
    assert len(device.copies) == 1, "one copy at a time"
    device.arrive()
    device.value = 0.25
    assert meter.read([optimizer]) == {"lr": 0.5}
    device.arrive()
    assert meter.read([optimizer]) == {"lr": 0.25}


def test_rates_without_optimizer_or_rate_are_none() -> None:
    optimizer = torch.optim.SGD([parameter()], lr=0.1)
    del optimizer.param_groups[0]["lr"]
    assert LearningRates().read([]) == LearningRates().read([optimizer]) == {}


# -- loss scale


def train(scaler: torch.amp.GradScaler, losses: list[float], meter: LossScale) -> list[dict[str, float]]:
    """Real scaler logic on the CPU; an infinite loss makes it skip. Read before each update, as in a run."""
    weight = parameter()
    optimizer = torch.optim.SGD([weight], lr=0.1)
    readings = []
    for loss in losses:
        meter.note(scaler)
        optimizer.zero_grad()
        scaler.scale(weight.sum() * loss).backward()
        readings.append(meter.read())
        scaler.step(optimizer)
        scaler.update()
    return [*readings, meter.read()]


def test_scale_growth_and_skips_are_those_of_a_real_scaler() -> None:
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=3)
    readings = train(scaler, [1, float("inf"), float("inf"), 1, 1, 1, 1], LossScale())
    assert [reading["amp_scale"] for reading in readings] == [1024, 1024, 512, 256, 256, 256, 512, 512]
    assert [reading["amp_skipped_updates"] for reading in readings] == [0, 0, 1, 2, 2, 2, 2, 2]
    assert [reading["amp_growths"] for reading in readings] == [0, 0, 0, 0, 0, 0, 1, 1]


def test_skips_between_two_readings_are_all_counted() -> None:
    scaler, meter = torch.amp.GradScaler("cpu", init_scale=1024.0, backoff_factor=0.25), LossScale()
    train(scaler, [1.0], meter)
    train(scaler, [float("inf")] * 3, LossScale())
    assert meter.read() == {"amp_scale": 16.0, "amp_growths": 0.0, "amp_skipped_updates": 3.0}


def test_scale_set_by_hand_is_no_skip() -> None:
    scaler, meter = torch.amp.GradScaler("cpu", init_scale=1024.0), LossScale()
    train(scaler, [1.0], meter)
    scaler.update(300.0)
    assert meter.read() == {"amp_scale": 300.0, "amp_growths": 0.0, "amp_skipped_updates": 0.0}


def test_another_scaler_with_a_lower_scale_is_no_skip() -> None:
    meter = LossScale()
    first, second = (torch.amp.GradScaler("cpu", init_scale=scale) for scale in (1024.0, 256.0))
    train(first, [float("inf")], meter)
    assert train(second, [1.0], meter)[-1] == {
        "amp_scale": 256.0,
        "amp_growths": 0.0,
        "amp_skipped_updates": 1.0,
    }


def test_scale_is_unknown_without_scaler_before_its_first_use_and_when_disabled() -> None:
    meter = LossScale()
    assert meter.read() == {}
    scaler = torch.amp.GradScaler("cpu")
    meter.note(scaler)
    assert meter.read() == {}
    disabled = torch.amp.GradScaler("cpu", enabled=False)
    meter.note(disabled)
    assert meter.read() == {}


def test_scale_does_not_keep_the_scaler_alive() -> None:
    meter = LossScale()
    train(torch.amp.GradScaler("cpu"), [1.0], meter)
    assert meter.read() == {}


def test_scale_on_a_device_is_read_later_and_never_waited_for() -> None:
    device = Device()
    scaler = torch.amp.GradScaler("cpu")
    scaler._scale = device.tensor
    meter = LossScale(device.start_copy)
    meter.note(scaler)
    device.value = 65536.0
    assert meter.read() == {}
    device.arrive()
    device.value = 32768.0
    assert meter.read()["amp_scale"] == 65536.0
    device.arrive()
    assert meter.read() == {"amp_scale": 32768.0, "amp_growths": 0.0, "amp_skipped_updates": 1.0}


# -- copies


def test_host_copy_does_not_see_later_writes() -> None:
    tensor = torch.ones(3)
    copy = HostCopy(tensor)
    tensor.zero_()
    assert copy.is_ready
    assert copy.read().tolist() == [1, 1, 1]


def test_latest_value_of_a_cpu_tensor_is_its_value_now() -> None:
    tensor, latest = torch.tensor(1.5, requires_grad=True), LatestValue()
    assert latest.read(tensor.detach()) == 1.5


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_host_copy_from_cuda_brings_the_value_of_its_moment() -> None:
    tensor = torch.full((4,), 2.0, device="cuda")
    copy = HostCopy(tensor)
    tensor.zero_()
    assert copy.read().tolist() == [2, 2, 2, 2]
    assert copy.is_ready
