"""The compiled kernel, as the tests of what it computes need it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from probe.measure.kernels import binding, compile


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The kernel, compiled from the sources as they are now: the installed one, if it is."""
    if binding.load(binding.LIBRARY).kernel is not None:
        return binding.LIBRARY
    if compile.find_compiler() is None:
        pytest.skip("no C compiler: apt-get install gcc libc6-dev")
    target = tmp_path_factory.mktemp("kernel") / compile.LIBRARY_NAME
    assert compile.compile_kernel(target) is None
    return target


@pytest.fixture
def kernel(library: Path, monkeypatch: pytest.MonkeyPatch) -> binding.Kernel:
    status = binding.load(library)
    assert status.kernel is not None, status.reason
    monkeypatch.setattr(binding, "status", lambda: status)
    return status.kernel


@pytest.fixture(params=[128, 256, 512])
def width(request: pytest.FixtureRequest, kernel: binding.Kernel) -> Iterator[str]:
    """Each way that this processor has."""
    names = {128: "generic", 256: "avx2", 512: "avx512"}
    chosen = kernel.choose(request.param)
    if chosen != names[request.param]:
        kernel.choose()
        pytest.skip(f"this processor has no {names[request.param]}")
    yield chosen
    kernel.choose()
