"""`tensor_statistics` against a slow float64 reference, for every kind of tensor it treats differently."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from probe.statistics import tensor_norms, tensor_statistics


def reference(tensor: Tensor) -> dict[str, float]:
    """One tensor, in plain Python floats: independent of every reduction under test."""
    dense = tensor.detach().to_dense() if tensor.layout is not torch.strided else tensor.detach()
    absolute = [abs(v) for v in dense.reshape(-1).tolist()]
    values = (torch.view_as_real(dense) if dense.is_complex() else dense).double().reshape(-1).tolist()
    if not all(map(math.isfinite, values)):
        array = np.array(values)
        with np.errstate(all="ignore"):
            return {
                "norm": float(np.sqrt(np.sum(array**2))),
                "max_abs": float(np.max(np.abs(array))),
                "mean": float(np.mean(array)),
                "std": float(np.std(array)),
                "nan_count": float(np.isnan(array).sum()),
                "inf_count": float(np.isinf(array).sum()),
            }
    mean = math.fsum(values) / len(values)
    return {
        "norm": math.hypot(*values),
        "max_abs": max(absolute),
        "mean": mean,
        "std": math.sqrt(math.fsum((v - mean) ** 2 for v in values) / len(values)),
        "nan_count": 0.0,
        "inf_count": 0.0,
    }


def check(tensors: list[Tensor], *, rtol: float) -> None:
    measured = tensor_statistics(tensors)
    for index, tensor in enumerate(tensors):
        for name, expected in reference(tensor).items():
            scale = reference(tensor)["max_abs"] if name == "mean" else abs(expected)
            tolerance = rtol * scale if math.isfinite(scale) else 0.0
            np.testing.assert_allclose(
                getattr(measured, name)[index],
                expected,
                rtol=rtol,
                atol=tolerance,
                err_msg=f"{name} of {index}",
            )
        assert not measured.missing[index]


GENERATOR = torch.Generator().manual_seed(0)


def normal(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, generator=GENERATOR).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("count", [1, 7, 16_384, 16_385, 40_000])
def test_statistics_of_every_size_and_dtype_match_reference(dtype: torch.dtype, count: int) -> None:
    check([normal(count, dtype=dtype), normal(3, 5, dtype=dtype)], rtol=3e-5)


def test_statistics_of_mixed_tensors_keep_their_places() -> None:
    check(
        [normal(4), normal(200, 200), normal(2, 3, dtype=torch.float64), normal(129, 140), normal(1)],
        rtol=3e-5,
    )


@pytest.mark.parametrize("count", [5, 20_000])
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_statistics_of_nonfinite_count_exactly(bad: float, count: int) -> None:
    tensor = normal(count)
    tensor[[1, 3]] = bad
    check([normal(6), tensor], rtol=3e-5)


def test_statistics_of_nan_and_inf_together_count_both() -> None:
    measured = tensor_statistics([torch.tensor([math.nan, math.inf, -math.inf, 1.0])])
    assert (measured.nan_count[0], measured.inf_count[0]) == (1.0, 2.0)


@pytest.mark.parametrize("count", [8, 20_000])
@pytest.mark.parametrize("magnitude", [1e-40, 1e-30, 1e25, 1e38])
def test_statistics_of_extreme_magnitudes_do_not_overflow(magnitude: float, count: int) -> None:
    check([normal(count).clamp(-3, 3).sign() * magnitude], rtol=1e-4)


@pytest.mark.parametrize("count", [8, 20_000])
def test_statistics_of_large_mean_and_small_spread_keep_the_spread(count: int) -> None:
    check([1000 + 1e-2 * normal(count)], rtol=2e-3)


@pytest.mark.parametrize("count", [10, 20_000])
@pytest.mark.parametrize("value", [0.0, 1.0, -2.5])
def test_statistics_of_a_constant_have_no_spread(value: float, count: int) -> None:
    measured = tensor_statistics([torch.full((count,), value)])
    assert measured.std[0] <= 1e-7 * abs(value)
    assert measured.norm[0] == pytest.approx(abs(value) * math.sqrt(count), rel=1e-6)


def test_statistics_of_none_and_empty_are_missing() -> None:
    measured = tensor_statistics([None, torch.empty(0), torch.ones(2)])
    assert measured.missing.tolist() == [True, True, False]
    assert measured.total_norm == pytest.approx(math.sqrt(2))


def test_total_norm_of_nothing_is_none() -> None:
    assert tensor_statistics([None, None]).total_norm is None


def test_total_norm_matches_torch() -> None:
    tensors = [normal(30, 30), normal(300, 100), normal(5)]
    expected = torch.nn.utils.get_total_norm([t.double() for t in tensors]).item()
    assert tensor_statistics(tensors).total_norm == pytest.approx(expected, rel=1e-6)


def test_statistics_of_uncoalesced_sparse_gradient_are_of_the_dense_one() -> None:
    embedding = torch.nn.Embedding(50, 4, sparse=True)
    embedding(torch.tensor([1, 1, 7])).pow(2).sum().backward()
    assert embedding.weight.grad is not None
    assert not embedding.weight.grad.is_coalesced()
    check([embedding.weight.grad], rtol=1e-5)


def test_statistics_of_complex_use_the_modulus() -> None:
    check([torch.complex(normal(20), normal(20))], rtol=1e-5)


def test_statistics_of_transposed_and_channels_last_match_reference() -> None:
    check([normal(5, 8).t(), normal(2, 3, 60, 70).to(memory_format=torch.channels_last)], rtol=3e-5)


def test_statistics_leave_tensors_and_generator_alone() -> None:
    tensors = [normal(10), normal(30_000)]
    before, state = [t.clone() for t in tensors], torch.get_rng_state()
    tensor_statistics(tensors)
    assert all(torch.equal(a, b) for a, b in zip(before, tensors, strict=True))
    assert torch.equal(state, torch.get_rng_state())


def test_norms_of_parameters_build_no_graph() -> None:
    parameter = torch.nn.Parameter(torch.ones(20_000))
    assert tensor_norms([parameter])[0] == pytest.approx(math.sqrt(20_000), rel=1e-6)
    assert parameter.grad is None


@settings(max_examples=150, deadline=None)
@given(
    st.lists(
        st.lists(st.floats(width=32, allow_nan=True, allow_infinity=True), min_size=1, max_size=9), min_size=1
    )
)
def test_statistics_of_any_small_tensors_match_reference(values: list[list[float]]) -> None:
    check([torch.tensor(v, dtype=torch.float32) for v in values], rtol=1e-5)
