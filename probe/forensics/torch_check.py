"""What of torch works here: version, private symbols, devices, the native kernel, a replay that is tried.

Called by `self_check`, in a process of its own: importing torch takes seconds, and the trial uses the hooks.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, Literal

import torch
from torch import Tensor, nn

from ..compat import availability, torch_foreach, torch_memory, torch_profiler, torch_ranks
from ..compat.torch_compiler import DEFAULT, cpp_compiler
from ..guard import let_pass
from ..measure.kernels import binding, hot_binding
from ..measure.kernels.compile import FOLDER, find_compiler
from ..measure.statistics.late_check import try_device
from ..wire.findings import Finding
from .capture import begin_capture
from .replay import Replay, locate_origin

TESTED_TORCH: Final = ("2.11", "2.12", "2.13", "2.14")
_CAPTURE_BYTES: Final = 1024**2

LOST_WITHOUT: Final[Mapping[str, str]] = MappingProxyType(
    {
        "torch._C._autograd._get_sequence_nr": "The time of the backward pass is not divided among modules.",
        "torch._C._autograd._ProfilerResult.experimental_event_tree": "A profile has no modules.",
        "torch._C._autograd._profiler_enabled": "A profiler of the script's own thread is not seen.",
        "torch._C._current_autograd_node": "An origin in the backward pass cannot be named.",
        "torch._C._current_graph_task_id": "A forward that a checkpoint repeats counts as the step's.",
        "torch._C._functorch.peek_interpreter_stack": "No event says that torch.func takes the gradients.",
        "torch._C._functorch.is_functorch_wrapped_tensor": "Tensors of torch.func look like any others.",
        "torch._C._nn.flatten_dense_tensors": "Many small tensors take longer to measure without the kernel.",
        "torch.nn.parallel.DistributedDataParallel._active_ddp_module": (
            "Pass the DistributedDataParallel itself to watch(): around its inner module it is not seen."
        ),
        "torch.Tensor.__dlpack_c_exchange_api__": "The native kernel cannot find tensors and is not used.",
        "torch.Tensor._version": "Writes in place are not noticed.",
        "torch._C.DisableTorchFunctionSubclass": "Reading the shape of a tensor runs the code of its class.",
        "torch.autograd.graph.Node._sequence_nr": "Operations are not matched to the lines that made them.",
        "torch.autograd.graph.Node._saved_self": "The divisor of an accumulated loss is not undone.",
        "torch.autograd.graph.Node._raw_saved_self": "The operands of an origin in a loss are not shown.",
        "torch.autograd.graph.Node._input_metadata": "A loss of wrongly broadcast shapes is not noticed.",
        **dict.fromkeys(torch_foreach.available(), "Many tensors on one device take longer to measure."),
        "torch.distributed.distributed_c10d._get_default_store": (
            "Set NANSCOPE_RUN for all ranks of a Lightning training, which else become a run each."
        ),
        "torch.autograd.Variable._execution_engine": "A rank that is slow in backward is not named.",
        "torch.distributed.ProcessGroup._get_sequence_number_for_group": (
            "Ranks that wait for each other are not compared by the number of their collective."
        ),
        "torch.distributed.distributed_c10d._world": (
            "Asking for a process group takes longer; a pause takes its timeout to be 10 minutes."
        ),
        "torch.nn.Module._call_impl": "Modules are followed through __call__, where a wrapper may hide them.",
        "torch.utils._python_dispatch.TorchDispatchMode": "Single operations cannot be seen.",
        "torch.autograd.profiler._is_profiler_enabled": "A profiler of another thread is not seen.",
        "torch.autograd.profiler.profile._prepare_trace": "A second profiler is not seen.",
        "torch.utils._pytree": "Tensors inside containers of your own classes are not captured.",
    }
)
"""What is off without each private symbol, besides replays: see `availability.NEEDED_FOR_REPLAY`."""


def torch_findings() -> list[Finding]:
    """Check everything that needs torch; takes about as long as importing it. Uses each GPU that there is."""
    return [
        check_version(),
        *check_symbols(all_symbols()),
        check_cuda(),
        *check_arrivals(),
        check_kernel(),
        check_compiler(),
        check_cpp_compiler(),
        check_replay(),
    ]


def all_symbols() -> dict[str, bool]:
    """Return every private symbol of torch that has a fallback, and whether this torch has it."""
    return {
        **availability.available(),
        **availability.available_to_measure(),
        **torch_ranks.available(),
        **torch_profiler.available(),
    }


def check_version() -> Finding:
    """Say which torch this is, and whether nanscope is tested with it."""
    version = torch.__version__
    if version.startswith(tuple(f"{tested}." for tested in TESTED_TORCH)):
        return Finding(name="torch", state="ok", found=version)
    return Finding(
        name="torch",
        state="limited",
        found=f"{version}; nanscope is tested with {TESTED_TORCH[0]} to {TESTED_TORCH[-1]}",
        advice="What this version lacks is switched off, as the lines below say.",
    )


def check_symbols(available: Mapping[str, bool]) -> list[Finding]:
    """Say which private symbols of torch are missing, each with what is off without it."""
    name = "torch internals"
    lacking = [symbol for symbol, is_there in available.items() if not is_there]
    if not lacking:
        return [Finding(name=name, state="ok", found=f"all {len(available)} that nanscope uses are there")]
    return [
        Finding(
            name=name,
            state="limited",
            found=f"{symbol} is missing",
            advice=LOST_WITHOUT.get(symbol, "What needs it is off.")
            + (" No failing step can be replayed." if symbol in availability.NEEDED_FOR_REPLAY else ""),
        )
        for symbol in lacking
    ]


def check_cuda() -> Finding:
    """Say whether torch can use a GPU and, where it should and cannot, what it says about that."""
    name = "CUDA"
    built = torch.version.hip or torch.version.cuda
    if built is None:
        return Finding(name=name, state="ok", found="torch is built for the CPU; nothing of CUDA is recorded")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        is_available = torch.cuda.is_available()
    if is_available:
        count = torch.cuda.device_count()
        in_use = "initialised" if torch_memory.cuda_is_initialised() else "not initialised by this check"
        platform = "ROCm, on which nanscope is not tested" if torch.version.hip else f"CUDA {built}"
        found = f"{count} GPU{'s' if count != 1 else ''}, {platform}; {in_use}"
        return Finding(name=name, state="limited" if torch.version.hip else "ok", found=found)
    said = f": {str(caught[-1].message).splitlines()[0]}" if caught else ""
    return Finding(
        name=name,
        state="limited",
        found=f"torch is built for {built} but sees no GPU{said}",
        advice="Trainings run on the CPU. Look at the driver (nvidia-smi) and at CUDA_VISIBLE_DEVICES.",
    )


def check_arrivals() -> list[Finding]:
    """Measure on each GPU without waiting for it, as followed steps are, and by waiting; compare the two."""
    if not torch.cuda.is_available():
        return []
    findings = []
    for index in range(torch.cuda.device_count()):
        device = torch.device("cuda", index)
        try:
            problem = try_device(device)
        except RuntimeError as error:  # it has no memory left, say, or belongs to another process
            let_pass(error)
            problem = str(error).splitlines()[0]
        found = f"{device}: " + ("values arrive as they are measured" if problem is None else problem)
        advice = "" if problem is None else "Trainings there compare this too, and then use the Python path"
        state: Literal["ok", "limited"] = "ok" if problem is None else "limited"
        findings.append(Finding(name="CUDA steps", state=state, found=found, advice=advice))
    return findings


def check_kernel() -> Finding:
    """Say which way CPU tensors are measured, and why."""
    name, status = "measuring", binding.status()
    if status.kernel is not None:
        steps = hot_binding.status().reason
        found = f"{status.reason}, for CPU tensors; one pass by torch's NVRTC on CUDA; {steps}"
        return Finding(name=name, state="ok", found=found)
    builds = f"{sys.executable} {FOLDER / 'compile.py'}"
    if status.reason.startswith("switched off"):
        advice = "unset NANSCOPE_KERNEL to use it"
    elif status.reason.startswith("this version of torch"):
        advice = "a torch that nanscope is tested with has it"
    elif find_compiler() is None:
        advice = "install a C compiler (gcc or clang), then nanscope again"
    else:
        advice = f"build it with: {builds}"
    return Finding(
        name=name,
        state="limited",
        found=f"torch and numpy: {status.reason}",
        advice=f"The same numbers, at a higher cost: {advice}",
    )


def check_cpp_compiler() -> Finding:
    """Say whether there is a C++ compiler, which torch.compile needs."""
    name, compiler = "C++ compiler", cpp_compiler()
    if compiler is not None:
        return Finding(name=name, state="ok", found=compiler)
    return Finding(
        name=name,
        state="limited",
        found=f"none (looked for CXX, {DEFAULT})",
        advice="Without one torch.compile and the modes compilation and full fail: apt-get install g++",
    )


def check_compiler() -> Finding:
    """Say whether there is a C compiler, which only the kernel's installation needs."""
    name, compiler = "C compiler", find_compiler()
    if compiler is not None:
        return Finding(name=name, state="ok", found=" ".join(compiler))
    if binding.status().kernel is not None:
        return Finding(name=name, state="ok", found="none; not needed, the kernel is built")
    return Finding(
        name=name,
        state="limited",
        found="none (looked for CC, cc, gcc, clang)",
        advice="Without one the native kernel cannot be built.",
    )


def check_replay() -> Finding:
    """Replay a step of a module with one known fault, and see whether its operation is found."""
    name, replay = "replay", try_replay()
    if replay.origin is not None and replay.origin.op == "log":
        return Finding(name=name, state="ok", found="tried: the operation that made a NaN was found")
    return Finding(
        name=name,
        state="limited",
        found=f"tried without success: {replay.reason or replay.fidelity}",
        advice="NaN and Inf are still detected, but the operation that made the first one is not named.",
    )


class _LogOfNegative(nn.Module):
    """Makes a NaN with its only operation that can; draws no random numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(2))

    def forward(self, values: Tensor) -> Tensor:
        return torch.log(values * self.scale)


def try_replay() -> Replay:
    """Capture and replay one step of `_LogOfNegative`, as a session would."""
    model = _LogOfNegative()
    values = torch.tensor([-1.0, 1.0])
    capture = begin_capture(model, (values,), {}, size_cap_bytes=_CAPTURE_BYTES)
    output = model(values)
    capture.finish(output)
    loss = output.sum()
    capture.note_backward([loss])
    loss.backward()
    parameters = dict(model.named_parameters())
    gradients = {name: parameter.grad for name, parameter in parameters.items()}
    return locate_origin(
        model, [capture], parameters=parameters, gradients=gradients, loss=loss, stage="local"
    )
