"""`analyze_tensor` against numpy in float64, for every kind of tensor."""

import json
import math
import warnings

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from torch import Tensor

from probe import analyze_tensor
from probe.actions.analysis.tensor import TensorReport

GENERATOR = torch.Generator().manual_seed(5)


def normal(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, generator=GENERATOR).to(dtype)


def dense(tensor: Tensor) -> np.ndarray:
    """The elements as numpy float64, complex ones as pairs; by way of Python numbers."""
    tensor = tensor.detach()
    if tensor.is_quantized:
        tensor = tensor.dequantize()
    if tensor.layout is not torch.strided:
        tensor = tensor.to_dense()
    if tensor.dtype.itemsize == 1 and tensor.is_floating_point():
        tensor = tensor.float()
    values = np.array(tensor.tolist()).reshape(-1)
    return np.concatenate([values.real, values.imag]) if tensor.is_complex() else values.astype(np.float64)


def differences(report: TensorReport, tensor: Tensor, *, rtol: float = 1e-6) -> list[str]:
    """What numpy has otherwise in float64; the report must be JSON, too."""
    values = dense(tensor)
    with np.errstate(all="ignore"):
        expected = {
            "norm": np.sqrt(np.sum(values**2)),
            "mean": values.mean(),
            "std": values.std(),
            "min": values.min(),
            "max": values.max(),
            "zero_fraction": np.mean(values == 0),
            "nan_count": np.isnan(values).sum(),
            "inf_count": np.isinf(values).sum(),
            "ok": np.isfinite(values).all(),
        }
    json.dumps(report.to_dict(), allow_nan=False)
    slack = rtol * float(np.abs(values[np.isfinite(values)]).max(initial=0.0))
    found = [
        f"{name} {getattr(report, name)}, not {value}"
        for name, value in expected.items()
        if not np.isclose(float(getattr(report, name)), value, rtol=rtol, atol=slack, equal_nan=True)
    ]
    return found if report.shape == tuple(tensor.shape) else [*found, f"shape {report.shape}"]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("count", [1, 12, 40_000])
@pytest.mark.capability(17, 18)
def test_analyze_of_every_float_matches_numpy(dtype: torch.dtype, count: int) -> None:
    tensor = normal(count, dtype=dtype)
    assert differences(analyze_tensor(tensor), tensor, rtol=3e-5 if count > 16_384 else 1e-6) == []


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64])
def test_analyze_of_integers_matches_numpy(dtype: torch.dtype) -> None:
    tensor = torch.tensor([[3, 0, 7], [1, 100, 0]], dtype=dtype)
    assert differences(analyze_tensor(tensor), tensor) == []


@pytest.mark.parametrize("dtype", [torch.uint16, torch.uint32, torch.uint64])
def test_analyze_of_wide_unsigned_integers_matches_numpy(dtype: torch.dtype) -> None:
    tensor = torch.tensor([3, 0, 60_000], dtype=dtype)
    assert differences(analyze_tensor(tensor), tensor) == []


def test_analyze_of_the_smallest_integer_does_not_overflow() -> None:
    report = analyze_tensor(torch.tensor([-(2**63), 5]))
    assert (report.max_abs, report.min) == (2.0**63, -(2.0**63))


def test_analyze_of_booleans_counts_true_as_one() -> None:
    tensor = torch.tensor([True, False, False, True])
    report = analyze_tensor(tensor)
    assert differences(report, tensor) == []
    assert report.mean == 0.5


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_analyze_of_float8_matches_numpy(dtype: torch.dtype) -> None:
    tensor = normal(30).to(dtype)
    assert differences(analyze_tensor(tensor), tensor) == []


def test_analyze_of_complex_takes_parts_as_elements_and_moduli_for_the_norm() -> None:
    tensor = torch.complex(normal(9), normal(9))
    report = analyze_tensor(tensor.conj())
    assert differences(report, tensor.conj()) == []
    assert report.max_abs == pytest.approx(max(abs(z) for z in tensor.tolist()), rel=1e-6)


def test_analyze_of_a_lazily_negated_view_matches_numpy() -> None:
    tensor = torch.complex(normal(9), normal(9)).conj().imag
    assert tensor.is_neg()
    assert differences(analyze_tensor(tensor), tensor) == []


@pytest.mark.parametrize("layout", ["coo", "csr", "csc", "bsr"])
def test_analyze_of_sparse_counts_what_is_not_stored_as_zeros(layout: str) -> None:
    tensor = torch.zeros(4, 6)
    tensor[1, 2], tensor[3, 5] = 2.0, 5.0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        sparse = {
            "coo": tensor.to_sparse,
            "csr": tensor.to_sparse_csr,
            "csc": tensor.to_sparse_csc,
            "bsr": lambda: tensor.to_sparse_bsr((2, 2)),
        }[layout]()
        report = analyze_tensor(sparse)
        assert differences(report, sparse) == []
    assert (report.min, report.max) == (0.0, 5.0)


def test_analyze_of_an_uncoalesced_gradient_is_of_the_dense_one() -> None:
    table = torch.nn.Embedding(20, 3, sparse=True)
    table(torch.tensor([4, 4, 9])).pow(2).sum().backward()
    gradient = table.weight.grad
    assert gradient is not None and not gradient.is_coalesced()
    assert differences(analyze_tensor(gradient), gradient) == []


def test_analyze_of_quantised_is_of_what_it_stands_for() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tensor = torch.quantize_per_tensor(normal(20), 0.1, 3, torch.quint8)
        report = analyze_tensor(tensor)
        assert differences(report, tensor) == []
    assert report.bytes == 20


@pytest.mark.parametrize("jagged", [False, True])
def test_analyze_of_nested_leaves_the_ragged_dimension_open(jagged: bool) -> None:
    parts = [normal(2, 3), normal(4, 3)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        layout = torch.jagged if jagged else torch.strided
        report = analyze_tensor(torch.nested.nested_tensor(parts, layout=layout))
    assert None in report.shape
    assert report.norm == pytest.approx(math.hypot(*torch.cat(parts).flatten().tolist()), rel=1e-6)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.capability(17)
def test_analyze_of_nonfinite_counts_it_and_gives_the_finite_range(bad: float) -> None:
    tensor = torch.tensor([1.0, bad, -3.0])
    report = analyze_tensor(tensor)
    assert not report.ok
    assert (report.nan_count, report.inf_count) == (int(math.isnan(bad)), int(math.isinf(bad)))
    assert (report.finite_min, report.finite_max) == (-3.0, 1.0)
    assert json.dumps(report.to_dict(), allow_nan=False)


def test_analyze_of_nothing_but_nan_has_no_finite_range() -> None:
    report = analyze_tensor(torch.full((3,), math.nan))
    assert report.finite_min is None
    assert report.to_dict()["mean"] == "NaN"


@given(hnp.arrays(np.float32, hnp.array_shapes(max_dims=3, max_side=4), elements=st.floats(width=32)))
@settings(max_examples=60, deadline=None)
def test_analyze_of_any_small_tensor_never_fails_and_is_json(values: np.ndarray) -> None:
    report = analyze_tensor(torch.from_numpy(values))
    assert report.nan_count == np.isnan(values).sum()
    assert str(report) and json.dumps(report.to_dict(), allow_nan=False)


def test_analyze_of_empty_has_no_statistics() -> None:
    report = analyze_tensor(torch.empty(0, 4))
    assert report.ok and report.mean is None and report.elements == 0


@pytest.mark.parametrize("kind", ["meta", "fake", "vmap"])
def test_analyze_of_what_cannot_be_read_says_why(kind: str) -> None:
    found: list[TensorReport] = []
    if kind == "meta":
        found.append(analyze_tensor(torch.empty(3, device="meta")))
    elif kind == "fake":
        from torch._subclasses.fake_tensor import FakeTensorMode

        with FakeTensorMode():
            found.append(analyze_tensor(torch.randn(3)))
    else:
        torch.func.vmap(lambda x: found.append(analyze_tensor(x)) or x)(normal(2, 3))
    assert found[0].note and found[0].mean is None and found[0].shape == (3,)


@pytest.mark.capability(18)
@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta")
@pytest.mark.parametrize("layout", [torch.strided, torch.sparse_coo, torch.sparse_csr])
def test_analyze_says_where_and_how_a_tensor_lies(layout: torch.layout) -> None:
    dense = torch.eye(4, dtype=torch.float64)
    report = analyze_tensor(dense if layout is torch.strided else dense.to_sparse(layout=layout), "eye")
    assert (report.name, report.shape, report.dtype, report.device) == ("eye", (4, 4), "float64", "cpu")
    assert report.layout == str(layout).removeprefix("torch.")
    # Values, and two indices of each, or five row pointers and a column of each, of int64.
    indices = {torch.strided: 0, torch.sparse_coo: 2 * 4 * 8, torch.sparse_csr: (5 + 4) * 8}[layout]
    values = 16 * 8 if layout is torch.strided else 4 * 8
    assert report.bytes == values + indices


@pytest.mark.capability(18)
def test_analyze_of_a_view_tells_what_it_keeps_alive() -> None:
    report = analyze_tensor(normal(1000)[:3])
    assert (report.bytes, report.storage_bytes) == (12, 4000)
    assert analyze_tensor(torch.ones(1).expand(1000)).bytes == 4


def test_analyze_leaves_tensor_graph_and_generator_alone() -> None:
    tensor = normal(50).requires_grad_()
    state, before = torch.get_rng_state(), tensor.detach().clone()
    analyze_tensor(tensor)
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(tensor.detach(), before) and tensor.grad is None


def test_analyze_of_no_tensor_is_refused_with_the_way_out() -> None:
    with pytest.raises(ValueError, match=r"torch\.as_tensor"):
        analyze_tensor([1.0, 2.0])  # type: ignore[arg-type]
