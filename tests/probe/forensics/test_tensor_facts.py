"""Facts of a tensor against an independent float64 computation by numpy."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from probe.forensics import tensor_facts
from probe.forensics.tensor_facts import facts_line, facts_of


def values(*numbers: float, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.tensor(numbers, dtype=dtype)


def expected(tensor: Tensor) -> dict[str, float]:
    """By numpy, in float64, over all real elements."""
    plain = torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor.detach()
    numbers = plain.to(torch.float64).numpy()
    with np.errstate(all="ignore"):
        return {
            "min": numbers.min(), "max": numbers.max(), "mean": numbers.mean(), "std": numbers.std(),
            "nan": np.isnan(numbers).sum(), "inf": np.isinf(numbers).sum(), "zero": (numbers == 0).sum(),
        }  # fmt: skip


GENERATOR = torch.Generator().manual_seed(5)
LARGE = torch.randn(5000, generator=GENERATOR) * 3 + 1000
TENSORS = {
    "normal": torch.randn(7, 11, generator=GENERATOR),
    "large offset": LARGE,
    "half": torch.randn(300, generator=GENERATOR).half(),
    "bfloat16": torch.randn(300, generator=GENERATOR).bfloat16(),
    "double": torch.randn(9, generator=GENERATOR, dtype=torch.float64) * 1e-200,
    "transposed": torch.randn(8, 6, generator=GENERATOR).t()[::2],
    "scalar": torch.tensor(2.5),
    "whole numbers": torch.arange(-4, 9),
    "bools": torch.tensor([True, False, False]),
    "complex": torch.randn(6, generator=GENERATOR, dtype=torch.complex64).conj(),
    "a NaN": values(1, math.nan, 0),
    "an Inf": values(1, math.inf, 0),
    "a negative Inf": values(1, -math.inf, 0),
    "both Inf": values(math.inf, -math.inf),
    "nothing finite": values(math.nan, math.inf),
    "a parameter": torch.nn.Parameter(values(1, 2)),
}


@pytest.mark.parametrize("chunk", [2**20, 7])
@pytest.mark.parametrize("name", TENSORS)
def test_numbers_are_those_of_numpy(name: str, chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensor_facts, "_CHUNK", chunk)
    tensor = TENSORS[name]
    facts = facts_of(tensor, role="input", name="0")
    for field, number in expected(tensor).items():
        assert getattr(facts, field) == pytest.approx(number, rel=1e-12, abs=0, nan_ok=True), field
    assert (facts.shape, facts.device) == (list(tensor.shape), "cpu")
    assert facts.dtype == str(tensor.dtype).removeprefix("torch.")


def test_finite_range_leaves_nan_and_inf_out() -> None:
    facts = facts_of(values(-2, math.nan, 7, math.inf), role="input", name="0")
    assert (facts.finite_min, facts.finite_max) == (-2, 7)
    nothing = facts_of(values(math.nan), role="input", name="0")
    assert (nothing.finite_min, nothing.finite_max, nothing.nan) == (None, None, 1)


def test_elements_that_a_sparse_tensor_does_not_store_are_zeros() -> None:
    dense = torch.tensor([[0.0, 2.0], [0.0, -3.0]])
    facts = facts_of(dense.to_sparse(), role="input", name="0")
    for field, number in expected(dense).items():
        assert getattr(facts, field) == pytest.approx(number), field


@pytest.mark.parametrize(
    "tensor",
    [torch.empty(2, 3, device="meta"), torch.ones(3).to(torch.float8_e4m3fn)],
    ids=["meta", "float8"],
)
def test_what_cannot_be_read_has_a_shape_and_no_numbers(tensor: Tensor) -> None:
    facts = facts_of(tensor, role="input", name="0")
    assert facts.shape == list(tensor.shape)
    assert (facts.min, facts.mean, facts.nan, facts.zero, facts.finite_min) == (None,) * 5


def test_empty_tensor_has_no_numbers() -> None:
    facts = facts_of(torch.empty(0, 3), role="input", name="0")
    assert (facts.shape, facts.mean, facts.std) == ([0, 3], None, None)


def test_line_names_range_and_counts() -> None:
    facts = facts_of(values(0, 3.25, math.nan, math.inf), role="input", name="1")
    assert facts_line(facts) == "input 1: float32 [4], 0 to 3.25, 1 zeros, 1 NaN, 1 Inf"
