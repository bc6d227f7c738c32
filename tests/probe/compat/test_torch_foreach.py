"""The stand-ins for torch's functions over lists give what those give."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from probe.compat import torch_foreach


def tensors() -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.rand(size, generator=generator) + 0.5 for size in (1, 7, 300)]


CASES = [
    ("sqrt", torch.sqrt, ()),
    ("div", torch.div, (tensors(),)),
    ("div_", Tensor.div_, ([2.0, 3.0, 4.0],)),
    ("add_", Tensor.add_, ([0.1, 0.2, 0.3],)),
    ("sub_", Tensor.sub_, (tensors(),)),
    ("mul_", Tensor.mul_, (torch.tensor(0.3),)),
    ("copy_", Tensor.copy_, ([torch.zeros(1), torch.zeros(7), torch.zeros(300)],)),
]


@pytest.mark.parametrize(("name", "operation", "others"), CASES, ids=[case[0] for case in CASES])
def test_stand_in_gives_the_same_bits(
    name: str, operation: Callable[..., Tensor], others: tuple[Any, ...]
) -> None:
    by_torch, one_by_one = tensors(), tensors()
    made = getattr(torch_foreach, f"foreach_{name}")(by_torch, *others)
    copies = torch_foreach.one_by_one(operation)(one_by_one, *others)
    wanted, got = (by_torch, one_by_one) if name.endswith("_") else (made, copies)
    assert all(torch.equal(one, other) for one, other in zip(wanted, got, strict=True))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_stand_in_for_norms_takes_the_accumulator(dtype: torch.dtype) -> None:
    wanted = torch_foreach.foreach_norm(tensors(), 2, dtype)
    got = torch_foreach.one_by_one(torch_foreach.norm_of)(tensors(), 2, dtype)
    torch.testing.assert_close(got, wanted)
    assert {norm.dtype for norm in got} == {dtype}
