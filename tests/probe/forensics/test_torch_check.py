"""Each finding about torch, made to appear; the replay is tried for real."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest
import torch

from probe import watching
from probe.compat import availability
from probe.forensics import torch_check
from probe.measure.kernels import binding, compile


def test_version_that_is_tested_is_that_of_the_session() -> None:
    assert watching.TESTED_TORCH == torch_check.TESTED_TORCH
    assert torch_check.check_version().found == torch.__version__


def test_version_that_is_untested_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "__version__", "2.99.0")
    finding = torch_check.check_version()
    assert (finding.state, finding.found) == ("limited", "2.99.0; nanscope is tested with 2.11 to 2.14")


def test_symbols_of_this_torch_are_counted() -> None:
    available = torch_check.all_symbols()
    (finding,) = torch_check.check_symbols(available)
    assert (finding.state, all(available.values())) == ("ok", True)


def test_symbols_each_have_what_is_lost_without_them() -> None:
    assert set(torch_check.LOST_WITHOUT) == set(torch_check.all_symbols())


def test_symbols_that_are_missing_are_a_line_each() -> None:
    available = {**torch_check.all_symbols(), "torch.utils._pytree": False, "torch._new": False}
    findings = torch_check.check_symbols(available)
    assert [(finding.state, finding.found) for finding in findings] == [
        ("limited", "torch.utils._pytree is missing"),
        ("limited", "torch._new is missing"),
    ]
    assert findings[0].advice.startswith(torch_check.LOST_WITHOUT["torch.utils._pytree"])
    assert "No failing step can be replayed." in findings[0].advice
    assert "No failing step can be replayed." not in findings[1].advice


def test_symbols_that_a_replay_needs_are_among_the_known_ones() -> None:
    assert set(availability.available()) >= availability.NEEDED_FOR_REPLAY


def test_cuda_of_a_build_for_the_cpu_is_ok(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "cuda", None)
    monkeypatch.setattr(torch.version, "hip", None)
    assert "built for the CPU" in torch_check.check_cuda().found


def test_cuda_without_a_gpu_is_limited_with_what_torch_says(monkeypatch: pytest.MonkeyPatch) -> None:
    def is_available() -> bool:
        warnings.warn("The NVIDIA driver on your system is too old", UserWarning, stacklevel=1)
        return False

    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "is_available", is_available)
    finding = torch_check.check_cuda()
    assert finding.state == "limited"
    assert finding.found.endswith("sees no GPU: The NVIDIA driver on your system is too old")


def test_cuda_with_gpus_is_ok_and_stays_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    before = torch.cuda.is_initialized()
    assert torch_check.check_cuda().found.startswith("2 GPUs, CUDA 13.0")
    assert torch.cuda.is_initialized() == before


def test_gpus_are_tried_and_what_they_answer_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    assert torch_check.check_arrivals() == [] or torch.cuda.is_available()

    def answer(device: torch.device) -> str | None:
        if device.index == 2:
            raise RuntimeError("CUDA error: out of memory\nmore")
        return ("norm 1, not 2", None)[device.index]

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    monkeypatch.setattr(torch_check, "try_device", answer)
    assert [(finding.state, finding.found) for finding in torch_check.check_arrivals()] == [
        ("limited", "cuda:0: norm 1, not 2"),
        ("ok", "cuda:1: values arrive as they are measured"),
        ("limited", "cuda:2: CUDA error: out of memory"),
    ]


def test_kernel_that_is_loaded_is_ok_with_its_vectors(library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(binding, "LIBRARY", library)
    finding = torch_check.check_kernel()
    assert finding.state == "ok"
    assert finding.found.startswith("native kernel, ")


def test_kernel_that_is_switched_off_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NANSCOPE_KERNEL", "off")
    finding = torch_check.check_kernel()
    assert finding.state == "limited"
    assert finding.found == "torch and numpy: switched off by NANSCOPE_KERNEL=off"
    assert "unset NANSCOPE_KERNEL" in finding.advice


@pytest.mark.parametrize(("compiler", "advice"), [("sh", "build it with: "), ("no-such-cc", "install a C")])
def test_kernel_that_is_not_built_is_limited_with_the_way_to_it(
    compiler: str, advice: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(binding, "LIBRARY", tmp_path / compile.LIBRARY_NAME)
    monkeypatch.setenv("CC", compiler)
    finding = torch_check.check_kernel()
    assert (finding.state, "not built" in finding.found) == ("limited", True)
    assert advice in finding.advice


def test_kernel_that_does_not_load_is_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / compile.LIBRARY_NAME).write_bytes(b"no library")
    monkeypatch.setattr(binding, "LIBRARY", tmp_path / compile.LIBRARY_NAME)
    finding = torch_check.check_kernel()
    assert (finding.state, "does not load" in finding.found) == ("limited", True)


def test_compiler_of_the_environment_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "sh -x")
    finding = torch_check.check_compiler()
    assert (finding.state, finding.found) == ("ok", "sh -x")


def test_compiler_that_is_absent_matters_only_without_a_kernel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CC", "no-such-cc")
    monkeypatch.setattr(binding, "LIBRARY", tmp_path / compile.LIBRARY_NAME)
    assert torch_check.check_compiler().state == "limited"
    monkeypatch.setattr(binding, "status", lambda: binding.KernelStatus(object(), "native kernel"))
    assert torch_check.check_compiler().state == "ok"


def test_replay_is_tried_and_finds_the_operation() -> None:
    random = torch.get_rng_state()
    assert torch_check.check_replay().state == "ok"
    assert torch.equal(torch.get_rng_state(), random)


def test_replay_that_cannot_work_is_limited_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    symbols = {**availability.available(), "torch.utils._pytree": False}
    monkeypatch.setattr(availability, "available", lambda: symbols)
    finding = torch_check.check_replay()
    assert finding.state == "limited"
    assert finding.found == "tried without success: this torch has no torch.utils._pytree"


def test_missing_cpp_compiler_is_limited_with_what_needs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    finding = torch_check.check_cpp_compiler()
    assert finding.state == "limited" and "modes compilation and full fail" in finding.advice
    compiler = tmp_path / "my-c++"
    compiler.write_text("#!/bin/sh\n")
    compiler.chmod(0o700)
    monkeypatch.setenv("CXX", "my-c++ -O1")
    assert torch_check.check_cpp_compiler().found == str(compiler)


def test_torch_findings_name_every_part() -> None:
    names = [finding.name for finding in torch_check.torch_findings()]
    assert names == [
        "torch",
        "torch internals",
        "CUDA",
        "measuring",
        "C compiler",
        "C++ compiler",
        "replay",
    ]
