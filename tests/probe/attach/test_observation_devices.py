"""What is measured on a device, run on the CPU here: the same numbers as by the other way, and by float64."""

import math

import numpy as np
import pytest
import torch
from observed_steps import Watched, seeded
from torch import Tensor, nn

from probe.attach.observation import tensor_rows
from probe.attach.observation.measured_rows import combine
from probe.attach.observation.tensor_rows import TensorRows, device_statistics

CASES = {
    "normal": torch.linspace(-3, 5, 1000),
    "far from zero": 1000 + torch.linspace(-1, 1, 1000),
    "huge": torch.tensor([3e38, -3e38, 1e38]),
    "tiny": torch.tensor([1e-40, -2e-40, 3e-40]),
    "half": torch.linspace(-60000, 60000, 512).half(),
    "bfloat16": torch.linspace(-2, 2, 77).bfloat16(),
    "double": torch.linspace(-1, 1, 64, dtype=torch.float64) * 1e200,
    "zeros": torch.zeros(9),
    "one": torch.tensor(4.0),
    "complex": torch.complex(torch.arange(4.0), -torch.ones(4)),
}


def reference(tensor: Tensor) -> list[float]:
    """rms, max_abs, mean, std, share of zeros by float64 arithmetic, scaled so that nothing overflows."""
    largest = float(tensor.abs().double().max()) or 1.0
    values = torch.view_as_real(tensor) if tensor.is_complex() else tensor
    x = values.double().reshape(-1) / largest
    moments = [x.square().mean().sqrt() * largest, tensor.abs().double().max(), x.mean() * largest]
    return [*map(float, moments), float(x.std(correction=0)) * largest, float((x == 0).double().mean())]


@pytest.mark.parametrize("case", CASES)
def test_device_statistics_match_float64(case: str) -> None:
    found = device_statistics(CASES[case], None).numpy()
    expected = reference(CASES[case])
    assert found[:5] == pytest.approx(expected, rel=2e-4, abs=abs(expected[1]) * 1e-6)
    assert found[6:].tolist() == [0, 0]


def test_device_statistics_count_nan_inf_and_saturated_elements() -> None:
    found = device_statistics(torch.tensor([0.0, 0.5, 1.0, -2.0, math.nan, math.inf]), (-1.0, 1.0)).numpy()
    assert found[4:].tolist() == [1 / 6, 3 / 6, 1, 1]
    assert np.isnan(found[:4]).all()


class OnDevice(TensorRows):
    """Takes every tensor for one of a device."""

    def measure(self, tensor: Tensor, bounds: tuple[float, float] | None) -> int:
        number = len(self.elements)
        self.elements.append(tensor.numel())
        self._device.setdefault(tensor.device, []).append(
            (number, device_statistics(tensor.detach(), bounds))
        )
        return number


def test_results_of_a_device_are_fetched_in_their_order() -> None:
    rows, here = OnDevice(), TensorRows()
    for size in (3, 50, 7):
        tensor = torch.arange(float(size))
        rows.measure(tensor, (-5.0, 5.0))
        here.measure(tensor, (-5.0, 5.0))
    assert rows.fetch() == pytest.approx(here.fetch(), rel=1e-6)


def test_rows_are_made_of_what_a_pass_has_found() -> None:
    """What the pass counts and adds up is worked out by numpy here, and measured by `TensorRows`."""
    here, found, elements = TensorRows(), [], []
    generator = torch.Generator().manual_seed(0)
    for size, bad in ((3, 1.0), (50, 0.0), (700, math.nan), (9, math.inf), (4, -math.inf)):
        tensor = torch.randn(size, generator=generator)
        tensor[1] = bad
        here.measure(tensor, (-0.5, 1.0))
        values = tensor.double().numpy()
        counted = (np.isnan(values), np.isinf(values), values == 0, (values <= -0.5) | (values >= 1.0))
        sums = [np.linalg.norm(values), np.abs(values).max(), values.sum()]
        found.append([*sums, *(which.sum() for which in counted)])
        elements.append(size)
    rows = tensor_rows._rows_of(np.array(found).T, np.array(elements))
    np.testing.assert_allclose(rows, here.fetch(), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("sizes", [(1, 5), (3, 3, 900)])
def test_combined_rows_are_those_of_all_elements(sizes: tuple[int, ...]) -> None:
    generator = torch.Generator().manual_seed(0)
    parts = [torch.randn(size, generator=generator, dtype=torch.float64) + 100 * size for size in sizes]
    rows = TensorRows()
    for part in parts:
        rows.measure(part, (-1.0, 1.0))
    found = combine(rows.fetch(), np.array(rows.elements, dtype=np.float64))
    assert found[:5] == pytest.approx(reference(torch.cat(parts)), rel=1e-12)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_observation_on_cuda_matches_that_on_the_cpu() -> None:
    found = []
    for device in ("cpu", "cuda"):
        model = seeded(lambda: nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))).to(device)
        watched = Watched(model, dead_after=1)
        found.append(watched.step(torch.linspace(-1, 1, 80).reshape(10, 8).to(device)))
    here, there = found
    for name in here.columns:
        if "time" not in name and "bytes" not in name:
            assert there.columns[name] == pytest.approx(here.columns[name], rel=1e-3, abs=1e-5), name
    for name in ("forward_time_s", "backward_time_s"):
        assert (there.columns[name] >= 0).all() and there.columns[name].any()
    assert (there.columns["allocated_bytes"] >= 0).all()
