"""`tensor_statistics` against a slow float64 reference, for every kind of tensor it treats differently."""

import math
import weakref

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from probe.measure.kernels import binding
from probe.measure.statistics.statistics import plan_measurement, tensor_norms, tensor_statistics


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


def differences(tensors: list[Tensor], *, rtol: float) -> list[str]:
    """Every statistic that is not the reference's, and every tensor that is missing."""
    measured = tensor_statistics(tensors)
    found = [f"{index} is missing" for index in measured.missing.nonzero()[0]]
    for index, tensor in enumerate(tensors):
        right = reference(tensor)
        for name, expected in right.items():
            scale = right["max_abs"] if name == "mean" else abs(expected)
            tolerance = rtol * scale if math.isfinite(scale) else 0.0
            value = getattr(measured, name)[index]
            if not np.isclose(value, expected, rtol=rtol, atol=tolerance, equal_nan=True):
                found.append(f"{name} of {index}: {value}, not {expected}")
    return found


@pytest.fixture(params=["native", "torch"], autouse=True)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both ways of measuring CPU tensors; the native one is torch's where no kernel was built."""
    if request.param == "torch":
        monkeypatch.setenv("NANSCOPE_KERNEL", "off")
    return str(request.param)


GENERATOR = torch.Generator().manual_seed(0)


def normal(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, generator=GENERATOR).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("count", [1, 7, 16_384, 16_385, 40_000])
def test_statistics_of_every_size_and_dtype_match_reference(dtype: torch.dtype, count: int) -> None:
    assert differences([normal(count, dtype=dtype), normal(3, 5, dtype=dtype)], rtol=3e-5) == []


def test_statistics_of_mixed_tensors_keep_their_places() -> None:
    tensors = [normal(4), normal(200, 200), normal(2, 3, dtype=torch.float64), normal(129, 140), normal(1)]
    assert differences(tensors, rtol=3e-5) == []


@pytest.mark.parametrize("count", [5, 20_000])
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_statistics_of_nonfinite_count_exactly(bad: float, count: int) -> None:
    tensor = normal(count)
    tensor[[1, 3]] = bad
    assert differences([normal(6), tensor], rtol=3e-5) == []


def test_statistics_of_nan_and_inf_together_count_both() -> None:
    measured = tensor_statistics([torch.tensor([math.nan, math.inf, -math.inf, 1.0])])
    assert (measured.nan_count[0], measured.inf_count[0]) == (1.0, 2.0)


@pytest.mark.parametrize("count", [8, 20_000])
@pytest.mark.parametrize("magnitude", [1e-40, 1e-30, 1e25, 1e38])
def test_statistics_of_extreme_magnitudes_do_not_overflow(magnitude: float, count: int) -> None:
    assert differences([normal(count).clamp(-3, 3).sign() * magnitude], rtol=1e-4) == []


@pytest.mark.parametrize("count", [8, 20_000])
def test_statistics_of_large_mean_and_small_spread_keep_the_spread(count: int) -> None:
    assert differences([1000 + 1e-2 * normal(count)], rtol=2e-3) == []


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
    assert differences([embedding.weight.grad], rtol=1e-5) == []


def test_statistics_of_complex_use_the_modulus() -> None:
    assert differences([torch.complex(normal(20), normal(20))], rtol=1e-5) == []


def test_statistics_of_transposed_and_channels_last_match_reference() -> None:
    tensors = [normal(5, 8).t(), normal(2, 3, 60, 70).to(memory_format=torch.channels_last)]
    assert differences(tensors, rtol=3e-5) == []


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


def test_is_finite_of_finite_tensors_whose_norm_overflows_holds() -> None:
    measured = tensor_statistics([torch.full((4,), 1.7e308, dtype=torch.float64)])
    assert measured.is_finite
    assert measured.norm[0] == math.inf


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_is_finite_of_one_bad_element_among_many_does_not_hold(bad: float) -> None:
    tensors = [normal(30), normal(70_000), normal(3)]
    assert tensor_statistics(tensors).is_finite
    tensors[1][69_999] = bad
    measured = tensor_statistics(tensors)
    assert not measured.is_finite
    assert measured.total_norm is not None
    assert not math.isfinite(measured.total_norm)


@pytest.mark.parametrize("magnitude", [1e-200, 1e200])
def test_total_norm_of_extreme_float64_neither_overflows_nor_vanishes(magnitude: float) -> None:
    tensors = [torch.full((count,), magnitude, dtype=torch.float64) for count in (3, 1)]
    assert tensor_statistics(tensors).total_norm == pytest.approx(2 * magnitude, rel=1e-12)


def test_total_norm_of_many_tensors_matches_float64_closely() -> None:
    tensors = [normal(size) * 10.0**power for power in range(-9, 3) for size in (1, 31, 1000, 40_000)]
    expected = math.sqrt(math.fsum(float(t.double().square().sum()) for t in tensors))
    assert tensor_statistics(tensors).total_norm == pytest.approx(expected, rel=1e-7)


def test_statistics_of_one_huge_element_among_tiny_ones_keep_the_tiny_ones() -> None:
    tensor = torch.full((100_000,), 1e-19)
    tensor[0] = 1e-15
    assert differences([tensor], rtol=1e-5) == []


def test_block_has_all_statistics_and_survives_the_next_measurement() -> None:
    tensors = [normal(10), normal(20_000)]
    plan = plan_measurement(tensors)
    first = tensor_statistics(tensors, plan)
    kept = first.block.copy()
    for tensor in tensors:
        tensor.mul_(2)
    tensor_statistics(tensors, plan)
    assert first.block.shape == (6, 2)
    np.testing.assert_array_equal(first.block, kept)
    np.testing.assert_array_equal(first.block[1], first.max_abs)


def test_plan_at_rest_keeps_one_result_and_none_that_is_in_use_is_written_over() -> None:
    if binding.kernel() is None:
        pytest.skip("torch's results are not kept")
    tensors = [normal(10), normal(20_000)]
    plan = plan_measurement(tensors)
    results = [tensor_statistics(tensors, plan) for _ in range(6)]
    used, blocks = results[2], [weakref.ref(result.block) for result in results]
    expected = used.block.copy()
    del results
    assert all(block() is not None for block in blocks)
    plan.release()
    assert sum(block() is not None for block in blocks) == 2
    tensors[0].mul_(3)
    later = [tensor_statistics(tensors, plan) for _ in range(3)]
    np.testing.assert_array_equal(used.block, expected)
    assert [result.norm[0] for result in later] == pytest.approx([3 * expected[0, 0]] * 3)


def test_plan_of_parameters_measures_gradients_of_every_kind() -> None:
    parameters = [torch.nn.Parameter(normal(8, 6)) for _ in range(7)]
    plan = plan_measurement(parameters)
    dense = normal(8, 6)
    gradients: list[Tensor | None] = [
        dense,
        torch.ones(1, 1).expand(8, 6),
        None,
        dense.to_sparse(),
        normal(6, 8).t(),
        torch._neg_view(normal(8, 6)),
        torch.empty(8, 6, device="meta"),
    ]
    for _ in range(3):
        measured = tensor_statistics(gradients, plan)
        assert measured.missing.tolist() == [False, False, True, False, False, False, True]
        for index in (0, 1, 3, 4, 5):
            gradient = gradients[index]
            assert gradient is not None
            assert measured.norm[index] == pytest.approx(reference(gradient)["norm"], rel=1e-6)
            assert measured.mean[index] == pytest.approx(reference(gradient)["mean"], rel=1e-5, abs=1e-8)


def test_statistics_of_a_list_that_the_plan_was_not_made_for_are_right() -> None:
    plan = plan_measurement([normal(3), normal(5)])
    assert tensor_statistics([normal(2), torch.ones(4), normal(3)], plan).norm[1] == pytest.approx(2.0)
    converted = [torch.ones(3, dtype=torch.bfloat16), torch.ones(7, dtype=torch.float64)]
    assert tensor_statistics(converted, plan).norm.tolist() == pytest.approx([math.sqrt(3), math.sqrt(7)])


def test_statistics_of_conjugated_complex_have_the_conjugated_mean() -> None:
    tensor = torch.complex(torch.full((9,), 3.0), torch.full((9,), 1.0))
    measured = tensor_statistics([tensor, tensor.conj()])
    assert measured.mean.tolist() == pytest.approx([2.0, 1.0])
    assert measured.max_abs.tolist() == pytest.approx([math.sqrt(10)] * 2)


def test_statistics_of_shared_storage_and_views_read_only_their_own_part() -> None:
    whole = normal(10, 10)
    assert differences([whole, whole[3], whole[:, 2], whole[2:5], whole.view(100)[17:90]], rtol=1e-5) == []


def test_statistics_of_subclass_and_integers_match_reference() -> None:
    class Tagged(Tensor):
        pass

    measured = tensor_statistics([normal(5).as_subclass(Tagged), torch.tensor([3, -4])])
    assert measured.norm[1] == 5.0
    assert not measured.missing.any()


def test_statistics_under_flushed_subnormals_still_see_them() -> None:
    tensor = torch.full((50,), 1e-41)
    torch.set_flush_denormal(True)
    try:
        measured = tensor_statistics([tensor, torch.ones(3)])
        is_still_flushing = not bool((tensor * torch.tensor(0.5)).any())
    finally:
        torch.set_flush_denormal(False)
    assert is_still_flushing
    assert tensor_statistics([tensor]).norm[0] > 0
    assert measured.norm[1] == pytest.approx(math.sqrt(3))


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(
        st.lists(st.floats(width=32, allow_nan=True, allow_infinity=True), min_size=1, max_size=9), min_size=1
    )
)
def test_statistics_of_any_small_tensors_match_reference(values: list[list[float]]) -> None:
    assert differences([torch.tensor(v, dtype=torch.float32) for v in values], rtol=1e-5) == []


def test_statistics_of_a_dtensor_are_of_its_local_shard() -> None:
    distributed = pytest.importorskip("torch.distributed")
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor import Shard, distribute_tensor

    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    try:
        whole = normal(6, 4)
        sharded = distribute_tensor(whole, DeviceMesh("cpu", [0]), [Shard(0)])
        plan = plan_measurement([sharded, normal(3)])
        for chosen in (plan, plan_measurement([normal(1), normal(1)])):
            measured = tensor_statistics([sharded, torch.ones(4)], chosen)
            assert measured.norm.tolist() == pytest.approx([reference(whole)["norm"], 2.0], rel=1e-6)
            assert not measured.missing.any()
    finally:
        distributed.destroy_process_group()
