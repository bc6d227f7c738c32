"""Which functions of libraries a replay may call: by name; what other packages do is watched as it is done.

Data and lookups alone. What the packages do to the objects that they are called on is kept by the guard.
"""

from __future__ import annotations

from typing import Final

from ...wire.libraries import FRAMEWORKS

_STANDARD: Final = frozenset(
    "math cmath operator _operator functools _functools itertools copy collections _collections "
    "_collections_abc typing typing_extensions types dataclasses enum abc contextlib numbers decimal "
    "fractions statistics string re random inspect textwrap datetime posixpath ntpath genericpath json "
    "builtins weakref _weakref".split()
)
_TENSORS: Final = frozenset("torch numpy einops probe _nanscope".split())
_REFUSED_PARTS: Final = (
    "torch.distributed",
    "torch.utils.tensorboard",
    "torch.utils.data",
    "torch.multiprocessing",
    "torch.serialization",
    "torch.hub",
    "torch.profiler",
    "torch.onnx",
    "torch.package",
    "torch.monitor",
    "torchvision.io",
    "torchvision.utils",
    "torchaudio.io",
    "accelerate.tracking",
    "transformers.integrations",
    "lightning.pytorch.loggers",
    "lightning.fabric.loggers",
    "pytorch_lightning.loggers",
    "lightning_fabric.loggers",
)
_REFUSED_OF_LIBRARIES: Final = ("log", "save", "push", "track", "report", "upload", "write", "print", "end_")
_REFUSED_OF_TORCH: Final = ("set_", "_set_", "reset_", "use_deterministic", "compile", "register_module_")
_REFUSED_OF_NUMPY: Final = frozenset(
    "copyto put place putmask fill_diagonal put_along_axis shuffle save savez savez_compressed savetxt "
    "memmap set_printoptions seterr at".split()
)
_REFUSED_OF_STANDARD: Final = frozenset(
    "open input exec eval compile __import__ breakpoint exit quit memoryview setitem delitem cache_clear "
    "dump shuffle purge".split()
)
_IN_PLACE: Final = frozenset(
    name
    for bare in "add and concat floordiv lshift matmul mod mul or pow rshift sub truediv xor".split()
    for name in (f"i{bare}", f"__i{bare}__")
)
_OUTSIDE: Final = frozenset(
    "os posix pathlib subprocess socket shutil tempfile sqlite3 queue _queue multiprocessing".split()
)
"""Packages whose functions are refused in a model's own forward, too."""
_SINGLE: Final = {
    "time": frozenset(
        "time perf_counter monotonic process_time thread_time sleep time_ns perf_counter_ns".split()
    ),
    "os": frozenset({"getpid", "getenv", "fspath", "cpu_count", "get"}),
    "posix": frozenset({"getpid", "fspath", "cpu_count"}),
    "pathlib": frozenset(
        "Path PosixPath PurePath joinpath with_name with_stem with_suffix exists is_file is_dir resolve "
        "absolute relative_to as_posix read_text read_bytes".split()
    ),
    "warnings": frozenset({"warn", "warn_explicit", "catch_warnings"}),
    "_warnings": frozenset({"warn", "warn_explicit"}),
    "logging": frozenset(
        "getLogger debug info warning warn error exception critical log isEnabledFor getEffectiveLevel "
        "hasHandlers getChild".split()
    ),
    "io": frozenset({"StringIO", "BytesIO"}),
    "_io": frozenset({"StringIO", "BytesIO"}),
    "threading": frozenset({"get_ident", "current_thread", "main_thread"}),
    "_thread": frozenset({"get_ident"}),
    "sys": frozenset({"getsizeof", "exc_info", "getrefcount"}),
    "heapq": frozenset({"nlargest", "nsmallest", "merge"}),
    "bisect": frozenset({"bisect", "bisect_left", "bisect_right"}),
    "_bisect": frozenset({"bisect", "bisect_left", "bisect_right"}),
}


def is_allowed(module: str, name: str) -> bool:
    """Whether a function changes nothing that a replay cannot put back.

    Args:
        module: where it is defined.
        name: its bare name.
    """
    if any(module == part or module.startswith(f"{part}.") for part in _REFUSED_PARTS):
        return False
    package = module.partition(".")[0]
    if module in _SINGLE or package in _SINGLE:
        return name in _SINGLE.get(module, _SINGLE.get(package, frozenset()))
    if module == "torch.autograd.function":
        return True
    if package == "torch":
        return name == "set_grad_enabled" or not name.startswith(_REFUSED_OF_TORCH)
    if package == "numpy":
        return name not in _REFUSED_OF_NUMPY and not name.startswith("set")
    if package in FRAMEWORKS:
        return not name.startswith(_REFUSED_OF_LIBRARIES)
    if package in _STANDARD:
        is_in_place = package in ("operator", "_operator") and name in _IN_PLACE
        return name not in _REFUSED_OF_STANDARD and not is_in_place
    return package in _TENSORS


def is_outside(module: str, name: str) -> bool:
    """Whether a function may change what lies outside of the script's objects, or what others wait for."""
    package = module.partition(".")[0]
    return package in _OUTSIDE and not is_allowed(module, name)


def is_known_library(module: str) -> bool:
    """Whether a module belongs to a package whose objects keep their state in attributes."""
    return module.partition(".")[0] in FRAMEWORKS
