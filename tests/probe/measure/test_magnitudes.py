"""Histograms of magnitudes against a search in plain Python, and head-room against real casts."""

import bisect
import math

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from probe.measure.statistics.magnitudes import log2_histograms
from probe.wire.magnitude_bins import BIN_EDGES, BINS, FORMATS, INF_BIN, NAN_BIN, ZERO_BIN, head_room

CASTS = {
    "fp16": torch.float16,
    "bf16": torch.bfloat16,
    "fp8_e4m3": torch.float8_e4m3fn,
    "fp8_e5m2": torch.float8_e5m2,
}


@pytest.fixture(params=["native", "torch"], autouse=True)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "torch":
        monkeypatch.setenv("NANSCOPE_KERNEL", "off")


def reference(values: list[float]) -> list[int]:
    counts = [0] * BINS
    for value in values:
        counts[NAN_BIN if math.isnan(value) else bisect.bisect_right(BIN_EDGES, abs(value))] += 1
    return counts


def spread(dtype: torch.dtype, seed: int = 0) -> Tensor:
    """Values of all magnitudes that the type has, and the special ones."""
    generator = torch.Generator().manual_seed(seed)
    exponents = torch.randint(-340, 320, (4000,), generator=generator).double()
    values = torch.randn(4000, generator=generator).double() * 10.0**exponents
    edges = torch.tensor([edge * f for edge in BIN_EDGES for f in (1, -1, 0.999999)], dtype=torch.float64)
    special = torch.tensor([0.0, -0.0, math.inf, -math.inf, math.nan], dtype=torch.float64)
    return torch.cat([values, edges, special]).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
def test_histogram_of_every_magnitude_matches_reference(dtype: torch.dtype) -> None:
    tensor = spread(dtype)
    assert log2_histograms([tensor])[0].tolist() == reference(tensor.double().tolist())


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.floats(), max_size=20))
def test_histogram_of_any_float64_matches_reference(values: list[float]) -> None:
    assert log2_histograms([torch.tensor(values, dtype=torch.float64)])[0].tolist() == reference(values)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
def test_histogram_of_zeros_with_a_few_others_matches_reference(dtype: torch.dtype) -> None:
    rare = spread(dtype, seed=1)
    tensor = torch.zeros(40, len(rare), dtype=dtype)
    tensor[7], tensor[20, 5], tensor[21, 6] = rare, 300.0, -0.0
    assert log2_histograms([tensor])[0].tolist() == reference(tensor.double().reshape(-1).tolist())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
def test_histogram_beside_every_edge_matches_reference(dtype: torch.dtype) -> None:
    edges = torch.tensor([*BIN_EDGES, 0.0], dtype=torch.float64).to(dtype)
    around = [edges, *(torch.nextafter(edges, torch.tensor(to, dtype=dtype)) for to in (0.0, math.inf))]
    tensor = torch.cat([part for one in around for part in (one, -one)]).repeat(9)
    assert log2_histograms([tensor])[0].tolist() == reference(tensor.double().tolist())


def test_histograms_of_many_tensors_keep_their_places() -> None:
    tensors = [torch.ones(3), None, torch.empty(0), torch.zeros(2, 2), torch.ones(1, 5).expand(4, 5)]
    counts = log2_histograms(tensors)
    assert counts.sum(axis=1).tolist() == [3, 0, 0, 4, 20]
    assert counts[3, ZERO_BIN] == 4


def test_histogram_of_complex_and_sparse_count_parts_and_unstored_zeros() -> None:
    counts = log2_histograms([torch.tensor([1 + 0j, 0 + 1j]), torch.eye(3).to_sparse()])
    assert counts[:, ZERO_BIN].tolist() == [2, 6]
    assert counts.sum(axis=1).tolist() == [4, 9]


@pytest.mark.parametrize("name", FORMATS)
def test_head_room_is_what_a_cast_loses(name: str) -> None:
    generator = torch.Generator().manual_seed(7)
    values = torch.randn(20_000, generator=generator)
    values *= 10.0 ** torch.randint(-44, 39, (20_000,), generator=generator)
    values = values[values.isfinite()]
    cast = values.to(CASTS[name]).float()
    room = head_room(log2_histograms([values]), name)
    underflow = float(((cast == 0) & (values != 0)).double().mean())
    # What does not fit becomes Inf or NaN, or is clamped, from further off than rounding goes.
    limits = torch.finfo(CASTS[name])
    half_step = limits.eps * 2.0 ** math.floor(math.log2(limits.max)) / 2
    is_clamped = (cast.abs() == limits.max) & (values.double().abs() - limits.max > half_step)
    overflow = float((~cast.isfinite() | is_clamped).double().mean())
    assert room.underflow_fraction[0] == pytest.approx(underflow, abs=1e-12)
    assert room.overflow_fraction[0] == pytest.approx(overflow, abs=1e-12)
    assert underflow + overflow > 0


def test_head_room_counts_subnormals_and_no_bad_elements() -> None:
    values = torch.tensor([2.0**-15, 2.0**-24, 2.0**-14, 1.0, 0.0, math.inf, math.nan, -(2.0**-20)])
    room = head_room(log2_histograms([values]), "fp16")
    assert room.subnormal_fraction[0] == 3 / 8
    assert (room.underflow_fraction[0], room.overflow_fraction[0]) == (0.0, 0.0)


def test_head_room_of_nothing_is_zero() -> None:
    room = head_room(np.zeros((2, BINS), dtype=np.int64), "bf16")
    assert room.overflow_fraction.tolist() == [0.0, 0.0]


def test_bin_edges_rise_and_have_every_format_limit() -> None:
    assert list(BIN_EDGES) == sorted(set(BIN_EDGES))
    assert BIN_EDGES[INF_BIN - 1] == math.inf
    for chosen in FORMATS.values():
        assert {chosen.underflow, chosen.smallest_normal, chosen.overflow} <= set(BIN_EDGES)
