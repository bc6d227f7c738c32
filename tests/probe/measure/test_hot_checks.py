"""What is checked before C reads torch's objects: the same wherever the script stands at that moment."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

import pytest
import torch

from probe.compat import torch_symbols
from probe.measure.kernels import binding, hot_binding, hot_checks


@contextmanager
def default_dtype() -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


SURROUNDINGS: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "none": ExitStack,
    "no_grad": torch.no_grad,
    "inference mode": torch.inference_mode,
    "autocast": lambda: torch.autocast("cpu"),
    "default device": lambda: torch.device("meta"),
    "default dtype": default_dtype,
}


@pytest.fixture
def symbols() -> dict[str, int]:
    found = torch_symbols.find_symbols()
    assert isinstance(found, dict), found
    return found


@pytest.mark.parametrize("name", SURROUNDINGS)
def test_checks_pass_wherever_the_script_stands(symbols: dict[str, int], name: str) -> None:
    with SURROUNDINGS[name]():
        assert hot_checks.find_problem(symbols) is None


@pytest.mark.parametrize(
    ("offset", "problem"), [("_VERSION", "versions of tensors"), ("_VERSION_COUNTER", "versions of tensors")]
)
def test_version_that_lies_elsewhere_is_noticed(
    symbols: dict[str, int], monkeypatch: pytest.MonkeyPatch, offset: str, problem: str
) -> None:
    # Still inside of the objects: the intrusive count, and the storage.
    monkeypatch.setattr(hot_checks, offset, {"_VERSION": 8, "_VERSION_COUNTER": 16}[offset])
    assert problem in (hot_checks.find_problem(symbols) or "")


def test_another_function_for_the_next_number_is_noticed(symbols: dict[str, int]) -> None:
    other = {**symbols, "next_sequence_number": symbols["grad_is_enabled"]}
    assert "sequence numbers" in (hot_checks.find_problem(other) or "")


@pytest.mark.skipif(binding.kernel() is None, reason=binding.status().reason)
def test_check_that_raises_means_the_slow_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """The checks run operations of torch, which a mode of the script may refuse."""

    def refuse(symbols: dict[str, int]) -> str | None:
        raise RuntimeError("not here")

    monkeypatch.setattr(hot_binding, "find_problem", refuse)
    found = hot_binding.status.__wrapped__()
    assert found.calls is None and "not here" in found.reason


def test_keys_that_tell_nothing_are_noticed(symbols: dict[str, int], monkeypatch: pytest.MonkeyPatch) -> None:
    still = (hot_checks.ctypes.c_uint64 * 2)()
    address = hot_checks.ctypes.addressof(still)
    monkeypatch.setattr(torch_symbols, "dispatch_keys_of_this_thread", lambda: address)
    assert "dispatch keys" in (hot_checks.find_problem(symbols) or "")
