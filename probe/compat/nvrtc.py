"""NVRTC, the compiler that torch for CUDA comes with, and the driver's calls to load and launch what it made.

Through ctypes, which lets other threads run meanwhile. Nothing is loaded before the first call.
"""

from __future__ import annotations

import ctypes
from typing import Any, Final

import torch

_CAPABILITY_FLAG: Final = "--gpu-architecture=sm_{}{}"


class CudaCallError(RuntimeError):
    """A call of NVRTC or of the driver failed; says which, and why as far as it is told."""


def compile_cuda(source: bytes, name: str, capability: tuple[int, int]) -> bytes:
    """Compile CUDA C++ without headers for a device of this capability; asks no device anything.

    Raises:
        CudaCallError: it does not compile, or there is no NVRTC.
    """
    nvrtc = _load("libnvrtc.so." + str(torch.version.cuda).split(".")[0], "libnvrtc.so")
    program = ctypes.c_void_p()
    _check(
        "nvrtcCreateProgram",
        nvrtc.nvrtcCreateProgram(ctypes.byref(program), source, name.encode(), 0, None, None),
    )
    try:
        flags = (ctypes.c_char_p * 1)(_CAPABILITY_FLAG.format(*capability).encode())
        if nvrtc.nvrtcCompileProgram(program, 1, flags):
            raise CudaCallError(f"{name} does not compile: {_text(nvrtc, 'ProgramLog', program)[:500]!r}")
        return _text(nvrtc, "CUBIN", program)
    finally:
        nvrtc.nvrtcDestroyProgram(ctypes.byref(program))


class CudaModule:
    """Compiled functions, loaded into the context that is current on this thread.

    Args:
        compiled: of `compile_cuda`, for the current device.

    Raises:
        CudaCallError: the driver does not take them.
    """

    def __init__(self, compiled: bytes) -> None:
        self._driver = _load("libcuda.so.1")
        self._launch = self._driver.cuLaunchKernel
        self._launch.argtypes = [ctypes.c_void_p, *[ctypes.c_uint] * 7, *[ctypes.c_void_p] * 3]
        self._module = ctypes.c_void_p()
        _check("cuModuleLoadData", self._driver.cuModuleLoadData(ctypes.byref(self._module), compiled))

    def function(self, name: str) -> ctypes.c_void_p:
        """Return one of the functions, for `launch`.

        Raises:
            CudaCallError: there is none of this name.
        """
        found = ctypes.c_void_p()
        result = self._driver.cuModuleGetFunction(ctypes.byref(found), self._module, name.encode())
        _check("cuModuleGetFunction", result)
        return found

    def launch(
        self, function: ctypes.c_void_p, blocks: int, threads: int, stream: int, arguments: list[Any]
    ) -> None:
        """Queue a function on a stream of the current context; ctypes values are its arguments, copied now.

        Raises:
            CudaCallError: it cannot be launched, or an earlier kernel of anyone has failed.
        """
        addresses = (ctypes.c_void_p * len(arguments))(*map(ctypes.addressof, arguments))
        result = self._launch(function, blocks, 1, 1, threads, 1, 1, 0, stream, addresses, None)
        if result:
            _check("cuLaunchKernel", result)


def _load(*names: str) -> ctypes.CDLL:
    """Load the first library of these that is there."""
    for name in names:
        try:
            return ctypes.CDLL(name)
        except OSError as error:
            problem = error
    raise CudaCallError(f"{names[0]} cannot be loaded: {problem}")


def _text(nvrtc: ctypes.CDLL, what: str, program: ctypes.c_void_p) -> bytes:
    """Return what NVRTC has to say or has made."""
    size = ctypes.c_size_t()
    _check(f"nvrtcGet{what}Size", getattr(nvrtc, f"nvrtcGet{what}Size")(program, ctypes.byref(size)))
    room = ctypes.create_string_buffer(size.value)
    _check(f"nvrtcGet{what}", getattr(nvrtc, f"nvrtcGet{what}")(program, room))
    return room.raw


def _check(call: str, result: int) -> None:
    if result:
        raise CudaCallError(f"{call} returned {result}")
