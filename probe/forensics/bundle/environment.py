"""Where a step ran: the settings of torch that change numbers, and what else decides about the last bits."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from typing import Any, Final, Literal

import torch

from ...compat import torch_memory
from .packer import dtype_name
from .schema import Environment, Settings
from .unpacker import dtype_called

_VARIABLES: Final = (
    *("OMP_NUM_THREADS", "MKL_NUM_THREADS", "MKL_CBWR", "ATEN_CPU_CAPABILITY", "ONEDNN_MAX_CPU_ISA"),
    *("CUBLAS_WORKSPACE_CONFIG", "NVIDIA_TF32_OVERRIDE", "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE"),
    *("CUDA_VISIBLE_DEVICES", "PYTHONHASHSEED"),
)
_FACTS: Final = {
    "torch": "torch",
    "python": "Python",
    "machine": "the architecture",
    "processor": "the processor",
    "instructions": "the vector instructions",
    "cuda": "CUDA",
    "gpu": "the GPU",
}
"""What the facts are called where they differ."""


def describe_environment(environment: Mapping[str, str] = os.environ) -> Environment:
    """Return what this process's numbers depend on besides the program and its data."""
    return Environment(
        settings=_settings(),
        facts=_facts(),
        variables={name: environment[name][:1000] for name in _VARIABLES if name in environment},
    )


def apply_settings(settings: Settings) -> None:
    """Have torch compute as it did there, as far as settings go; of this process, for good."""
    torch.set_num_threads(settings.threads)
    torch.set_default_dtype(dtype_called(settings.default_dtype))
    torch.set_float32_matmul_precision(settings.matmul_precision)
    torch.use_deterministic_algorithms(settings.deterministic, warn_only=True)
    _flags("mkldnn").enabled = settings.mkldnn
    _flags("cudnn").benchmark = settings.cudnn_benchmark
    _flags("cudnn").deterministic = settings.cudnn_deterministic
    torch.set_flush_denormal(settings.flushes_denormals)


def differences(there: Environment) -> list[str]:
    """Say in words what is not as it was where the bundle was made, and may change the last bits."""
    here = _facts()
    found = [
        f"{words} was {there.facts.get(name, 'none')}, here it is {here.get(name, 'none')}"
        for name, words in _FACTS.items()
        if there.facts.get(name) != here.get(name)
    ]
    variables = {name: os.environ.get(name) for name in _VARIABLES}
    return found + [
        f"{name} was {there.variables.get(name, 'not set')}, here it is {value or 'not set'}"
        for name, value in variables.items()
        if there.variables.get(name) != value and name != "OMP_NUM_THREADS"
    ]


def _settings() -> Settings:
    return Settings(
        threads=torch.get_num_threads(),
        default_dtype=dtype_name(torch.get_default_dtype()),
        matmul_precision=_precision(),
        deterministic=torch.are_deterministic_algorithms_enabled(),
        mkldnn=bool(_flags("mkldnn").enabled),
        cudnn_benchmark=bool(_flags("cudnn").benchmark),
        cudnn_deterministic=bool(_flags("cudnn").deterministic),
        flushes_denormals=_flushes_denormals(),
    )


def _precision() -> Literal["highest", "high", "medium"]:
    found = torch.get_float32_matmul_precision()
    return "high" if found == "high" else "medium" if found == "medium" else "highest"


def _flags(name: str) -> Any:
    return getattr(torch.backends, name)


def _flushes_denormals() -> bool:
    return not bool(torch.tensor(1e-310, dtype=torch.float64, device="cpu") * 1.0)


def _facts() -> dict[str, str]:
    facts = {
        "torch": str(torch.__version__),
        "python": platform.python_version(),
        "machine": f"{platform.system()} {platform.machine()}",
        "processor": _processor(),
        "instructions": torch.backends.cpu.get_cpu_capability(),
    }
    if torch_memory.cuda_is_initialised():
        facts["cuda"] = str(torch.version.cuda)
        facts["gpu"] = torch.cuda.get_device_name()
    return facts


def _processor() -> str:
    """The processor's name; empty where the system does not tell."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:  # noqa: PTH123 - no path
            names = (line.partition(":")[2].strip() for line in file if line.startswith("model name"))
            return next(names, "")
    except OSError:
        return platform.processor()
