"""Measures of activations, pairs and units against plain Python and numpy, with and without the kernel."""

import math

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from probe.measure.kernels import binding
from probe.measure.kernels.binding import Kernel
from probe.measure.statistics.tensor_measures import (
    ActivationRows,
    activation_statistics,
    difference_norms,
    dot_products,
    unit_activity,
)

FLOATS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]


@pytest.fixture(params=["native", "torch"], autouse=True)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "torch":
        monkeypatch.setenv("NANSCOPE_KERNEL", "off")


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def activation_reference(tensor: Tensor, low: float, high: float) -> list[float]:
    values = tensor.double().numpy().ravel()
    return [
        math.hypot(*values) / math.sqrt(values.size),
        float(np.abs(values).max()),
        math.fsum(values) / values.size,
        float(np.std(values)),
        float((values == 0).mean()),
        float(((values <= low) | (values >= high)).mean()),
        0.0,
        0.0,
    ]


@pytest.mark.parametrize("dtype", FLOATS)
def test_activation_statistics_of_every_dtype_match_reference(dtype: torch.dtype) -> None:
    shapes = [(1,), (3, 5), (2, 7, 40, 9)]
    tensors = [torch.relu(normal(*shape, seed=len(shape)) + 0.5).to(dtype) for shape in shapes]
    measured = activation_statistics(tensors, saturation=1.5)
    for index, tensor in enumerate(tensors):
        expected = activation_reference(tensor, -1.5, 1.5)
        np.testing.assert_allclose(measured.block[:, index], expected, rtol=1e-5, atol=1e-6)
    assert not measured.missing.any()


def test_activation_statistics_with_bounds_of_each_and_none_count_only_where_asked() -> None:
    sigmoid = torch.sigmoid(4 * normal(200))
    measured = activation_statistics([sigmoid, sigmoid], saturation=[(0.01, 0.99), None])
    expected = float(((sigmoid <= 0.01) | (sigmoid >= 0.99)).double().mean())
    assert measured.saturated_fraction.tolist() == [expected, 0.0]


def test_activation_statistics_of_nan_and_inf_count_and_propagate() -> None:
    tensor = torch.tensor([math.nan, math.inf, 0.0, 2.0])
    measured = activation_statistics([tensor, torch.ones(2)], saturation=2.0)
    assert (measured.nan_count[0], measured.inf_count[0]) == (1.0, 1.0)
    assert math.isnan(measured.rms[0])
    assert (measured.zero_fraction[0], measured.saturated_fraction[0]) == (0.25, 0.5)
    assert measured.rms[1] == 1.0


@pytest.mark.parametrize(
    "tensor",
    [
        normal(2, 6, 5, 5).to(memory_format=torch.channels_last),
        normal(8, 9).t()[::2],
        normal(1, 4).expand(3, 4),
        torch.eye(4).to_sparse(),
        normal(30) * 1e-40,
    ],
    ids=["channels last", "strided", "expanded", "sparse", "subnormal"],
)
def test_activation_statistics_of_unusual_memory_match_reference(tensor: Tensor) -> None:
    dense = tensor.to_dense() if tensor.is_sparse else tensor
    measured = activation_statistics([normal(2), tensor, normal(3)], saturation=0.5)
    expected = activation_reference(dense, -0.5, 0.5)
    np.testing.assert_allclose(measured.block[:, 1], expected, rtol=1e-4, atol=1e-6 * expected[1])
    assert not measured.missing.any()


def test_activation_statistics_of_empty_and_meta_are_missing() -> None:
    measured = activation_statistics([torch.empty(0, 3), torch.empty(2, device="meta"), torch.ones(1)])
    assert measured.missing.tolist() == [True, True, False]
    assert not measured.block[:, :2].any()


@pytest.fixture
def kernel(way: None) -> Kernel:
    found = binding.kernel()
    if found is None:
        pytest.skip("there is no kernel")
    return found


ONE_BY_ONE = {
    "normal": normal(2, 3, 40),
    "with zeros": torch.relu(normal(64, 8)),
    "nan and inf": torch.tensor([math.nan, -math.inf, 0.0, 2.0]),
    "huge": torch.tensor([3e38, -3e38]),
    "half": normal(9).half(),
    "double": normal(70).double(),
    "complex": torch.complex(normal(5), normal(5)),
    "channels last": normal(2, 6, 5, 5).to(memory_format=torch.channels_last),
    "scalar": torch.tensor(-3.0),
    "part of a graph": normal(4).requires_grad_() * 2,
}


def test_activation_rows_are_the_statistics_of_each_whatever_came_before(kernel: Kernel) -> None:
    rows, bounds = ActivationRows(kernel), [(-0.5, 0.5), None]
    listed = [*ONE_BY_ONE.values()] * 60
    for number, tensor in enumerate(listed):
        assert rows.measure(number, tensor, bounds[number % 2])
        assert rows.zero_fraction(number) == float((tensor == 0).double().mean())
    parts = [tensor.numel() * (2 if tensor.is_complex() else 1) for tensor in listed]
    found = rows.fetch(np.array(parts, dtype=np.float64))
    detached = [tensor.detach() for tensor in listed]
    expected = [
        activation_statistics([tensor], saturation=[bounds[number % 2]]).block[:, 0]
        for number, tensor in enumerate(detached)
    ]
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("tensor", [normal(1, 4).expand(3, 4), normal(8, 9)[:, ::2], torch.empty(0)])
def test_activation_rows_leave_what_is_no_piece_of_memory_to_torch(kernel: Kernel, tensor: Tensor) -> None:
    rows = ActivationRows(kernel)
    assert not rows.measure(0, tensor, None)
    assert rows.measure(1, torch.ones(3), None)
    assert rows.fetch(np.array([12.0, 3.0]))[1, :3].tolist() == [1, 1, 1]


@pytest.mark.parametrize("count", [0, 3, 300])
def test_activation_rows_of_which_most_lie_on_a_device_are_zeros(kernel: Kernel, count: int) -> None:
    """A device's tensors have numbers here too, and no room was made for those."""
    rows = ActivationRows(kernel)
    for number in range(count):
        assert rows.measure(2 * number, torch.full((4,), 2.0), None)
    found = rows.fetch(np.full(2000, 4.0))
    assert found.shape == (2000, 8)
    assert found[: 2 * count : 2, 0].tolist() == [2.0] * count
    assert not found[1::2].any() and not found[2 * count :].any()


def test_activation_rows_know_the_active_units_of_the_newest(kernel: Kernel) -> None:
    rows = ActivationRows(kernel)
    for dim, tensor in [(1, torch.eye(5)[:3]), (0, torch.eye(5)[:3]), (1, torch.zeros(2, 3, 2, 2))]:
        rows.measure(0, tensor, None)
        assert rows.active_units(tensor, dim).tolist() == unit_activity(tensor, dim).tolist()
    rows.measure(0, torch.tensor(0.0), None)
    assert rows.active_units(torch.tensor(0.0), -1).tolist() == [False]


def test_activation_statistics_with_bounds_for_another_number_are_refused() -> None:
    with pytest.raises(ValueError, match="1 entries for 2 tensors"):
        activation_statistics([torch.ones(1)] * 2, saturation=[None])


def test_differences_of_unlike_memory_pair_elements_by_index() -> None:
    image = normal(2, 3, 4, 5)
    other = (image + 1).to(memory_format=torch.channels_last)
    expected = math.sqrt(image.numel())
    assert difference_norms([other, image.t() if image.dim() == 2 else image], [image, other]).tolist() == (
        pytest.approx([expected, expected], rel=1e-6)
    )
    square = normal(6, 6)
    assert dot_products([square], [square.t()])[0] == pytest.approx(
        float((square * square.t()).sum()), rel=1e-5
    )


def test_pairs_of_none_empty_and_unlike_dtypes() -> None:
    new = [None, torch.ones(2), torch.empty(0), torch.full((4,), 3.0, dtype=torch.bfloat16)]
    old = [torch.ones(2), None, torch.empty(0), torch.full((4,), 1.0)]
    assert difference_norms(new, old).tolist() == [0.0, 0.0, 0.0, 4.0]
    assert dot_products(new, old).tolist() == [0.0, 0.0, 0.0, 12.0]


@pytest.mark.parametrize("magnitude", [1e-300, 1e200])
def test_differences_of_extreme_float64_neither_overflow_nor_vanish(magnitude: float) -> None:
    new = torch.tensor([3.0, 4.0], dtype=torch.float64) * magnitude
    assert difference_norms([new], [torch.zeros_like(new)])[0] == pytest.approx(5 * magnitude, rel=1e-12)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_pairs_with_a_bad_element_say_so(bad: float) -> None:
    new = [torch.tensor([1.0, bad]), torch.ones(2)]
    assert not math.isfinite(difference_norms(new, [torch.ones(2)] * 2)[0])
    assert not math.isfinite(dot_products(new, [torch.ones(2)] * 2)[0])


def test_dot_products_of_complex_are_the_real_part() -> None:
    a, b = torch.complex(normal(5), normal(5, seed=1)), torch.complex(normal(5, seed=2), normal(5, seed=3))
    expected = float((a * b.conj()).real.sum())
    assert dot_products([a, a.conj()], [b, b.conj()]).tolist() == pytest.approx([expected] * 2, rel=1e-5)


@pytest.mark.parametrize(("new", "old"), [([torch.ones(2)], []), ([torch.ones(2)], [torch.ones(3)])])
def test_pairs_that_do_not_fit_are_refused(new: list[Tensor], old: list[Tensor]) -> None:
    for measure in (difference_norms, dot_products):
        with pytest.raises(ValueError, match="pair"):
            measure(new, old)


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    shape=st.lists(st.integers(1, 4), min_size=1, max_size=5),
    seed=st.integers(0, 2**16),
    dtype=st.sampled_from([*FLOATS, torch.complex64]),
    is_channels_last=st.booleans(),
)
def test_unit_activity_of_any_shape_matches_reference(
    shape: list[int], seed: int, dtype: torch.dtype, is_channels_last: bool
) -> None:
    generator = torch.Generator().manual_seed(seed)
    tensor = (torch.randint(0, 8, shape, generator=generator) // 7).to(dtype)
    if is_channels_last and len(shape) == 4:
        tensor = tensor.to(memory_format=torch.channels_last)
    dim = 1 if len(shape) in (4, 5) else len(shape) - 1
    others = tuple(d for d in range(len(shape)) if d != dim)
    expected = (tensor.to(torch.complex128).numpy() != 0).any(axis=others)
    assert unit_activity(tensor).tolist() == expected.tolist()
    assert unit_activity(tensor, dim=0).tolist() == [bool((row != 0).any()) for row in tensor]


def test_unit_activity_takes_nan_for_active_and_negative_zero_for_not() -> None:
    assert unit_activity(torch.tensor([[math.nan, -0.0, 1e-42]])).tolist() == [True, False, True]


def test_unit_activity_of_no_samples_and_of_views() -> None:
    assert unit_activity(torch.empty(0, 3)).tolist() == [False, False, False]
    assert unit_activity(torch.eye(4)[:, ::3]).tolist() == [True, True]
    assert unit_activity(torch.tensor(2.0)).tolist() == [True]


def test_measures_leave_tensors_graph_and_generator_alone() -> None:
    tensor, state = normal(20).requires_grad_(), torch.get_rng_state()
    before = tensor.detach().clone()
    activation_statistics([tensor], saturation=1.0)
    difference_norms([tensor], [tensor * 2])
    dot_products([tensor], [tensor])
    unit_activity(tensor)
    assert torch.equal(tensor, before)
    assert tensor.grad is None
    assert torch.equal(state, torch.get_rng_state())
