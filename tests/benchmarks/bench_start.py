"""Prints what a session costs outside of the steady state: at its start, in its first steps, at its end.

    python tests/benchmarks/bench_start.py [--repeats 5] [--only watch steps exit idle] [--idle-s 20]

Every training runs in a process of its own, with the probe and without it in turn; what is printed are
medians over the repeats. Bytecode is cached, as an installer leaves it. Per model:

- *watch*: import and call of `probe.watch`, and how many modules that loads;
- *steps*: the first three and the longest of 20, in ms of wall time and of the training thread's CPU time;
  *least* is a training beside which only the indispensable is done (`smallest_start.py`);
- *memory*: what `watch` and 100 steps add to the resident memory of the process, in MiB; how much of it is
  only free in malloc's heap, where what the training frees stays as well; and what is held: written by the
  process and shared with no file, once malloc has given back what is free. That does not depend on chance.
  Beside it the same of the smallest program, and of a training that only makes as many names as any import of
  some size: Python's table of them grows, and by what it frees malloc's threshold for memory of its own does;
- *exit*: from the script's last line (or the exception that ends it) to the process's end, in ms, and to the
  moment when every hook of `atexit` has run, the probe's among them: what follows is Python's and torch's;
- *idle*: CPU time of the recorder's thread and of the helper while the training sleeps, as shares of a core:
  in the first second, in which the last steps are judged and written, and from the third on.
"""

from __future__ import annotations

import argparse
import atexit
import contextlib
import ctypes
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parents[2]
STEPS: Final = 20
STEPS_FOR_MEMORY: Final = 100
NAMES: Final = 2000
"""After `import torch` of this release 1,500 more have the table grow; the probe's modules bring 8,000."""
BUSY_S: Final = 2.0
"""So long after its last step a run is not taken for idle: what it has recorded is judged and written."""
RECORDER_THREAD: Final = "nanscope-recorder"
BYTECODE: Final = str(Path(tempfile.gettempdir()) / f"bench-start-bytecode-{os.getuid()}")
"""Where modules are kept compiled, whatever the environment says; the first process of all fills it."""
PARTS: Final = ("watch", "steps", "exit", "idle")
KINDS: Final = ("plain", "watched", "least", "names")
"""What is beside a training: nothing, the probe, the smallest program, `NAMES`."""


# -- in a process of its own


def make_blocks(width: int = 16) -> Any:
    """500 residual blocks in healthy proportions: 2,501 modules, 2,000 parameters."""
    from torch import Tensor, nn

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.linear = nn.LayerNorm(width), nn.Linear(width, width)
            self.activation, self.dropout = nn.GELU(), nn.Dropout(0.1)

        def forward(self, x: Tensor) -> Tensor:
            return x + 0.05 * self.dropout(self.activation(self.linear(self.norm(x))))

    return nn.Sequential(*(Block() for _ in range(500)))


def make_training(name: str) -> tuple[Any, Any, Callable[[], Any]]:
    """Return a model, its optimizer, and what computes the loss."""
    import torch

    sys.path.insert(0, str(Path(__file__).parent))
    import workloads

    torch.set_num_threads(1)
    torch.manual_seed(0)
    device = torch.device("cpu")
    if name == "modules":
        model, inputs = make_blocks(), torch.randn(16, 16)
        return model, torch.optim.AdamW(model.parameters()), lambda: model(inputs).square().mean()
    if name == "tensors":
        many, compute_many = workloads.make_many(device)
        return many, workloads.make_sgd(many.parameters()), compute_many
    mlp, compute_loss = workloads.make_mlp(device)
    return mlp, workloads.make_adamw(mlp.parameters()), compute_loss


def begin_watching(model: Any, optimizer: Any) -> dict[str, float]:
    """Import the probe and watch; return what that took."""
    before, cpu, started = set(sys.modules), time.thread_time(), time.perf_counter()
    sys.path.insert(0, str(ROOT))
    import probe

    probe.watch(model, optimizer)
    wall_s, cpu_s = time.perf_counter() - started, time.thread_time() - cpu
    loaded = set(sys.modules) - before
    own = sum(name.partition(".")[0] == "probe" for name in loaded)
    return {"ms": wall_s * 1e3, "cpu_ms": cpu_s * 1e3, "modules": len(loaded), "own_modules": own}


def resident_mib() -> float:
    """What is resident, of which nothing is shared with a file that every process has anyway."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


class _Heap(ctypes.Structure):
    """`struct mallinfo2` of the GNU C library."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost".split()
    ]


def free_mib() -> float:
    """What lies free in malloc's heap, to be used again; 0 where nothing tells."""
    try:
        read = ctypes.CDLL(None).mallinfo2
    except (OSError, AttributeError):
        return 0.0
    read.restype = _Heap
    return float(read().fordblks) / 2**20


def held_mib() -> float:
    """What the process has written and still holds, once malloc has given back what is free."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("Private_Dirty:")) / 2**10


def thread_cpu_s(name: str) -> float | None:
    """CPU time of a thread of this process, None without one."""
    thread = next((each for each in threading.enumerate() if each.name == name), None)
    if thread is None:
        return None
    fields = Path(f"/proc/self/task/{thread.native_id}/schedstat").read_text().split()
    return int(fields[0]) / 1e9


def helper_pid(spool: Path) -> int | None:
    """The process that ships what is recorded in this spool, None without one."""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            command = (folder / "cmdline").read_bytes()
        except OSError:
            continue
        if b"helper_entry.py" in command and os.fsencode(spool) in command:
            return int(folder.name)
    return None


def process_cpu_s(pid: int | None) -> float:
    """CPU time of all threads of a process, 0 without one."""
    files = [] if pid is None else list(Path(f"/proc/{pid}/task").glob("*/schedstat"))
    return sum(int(file.read_text().split()[0]) for file in files) / 1e9


def measure_idle(sleep_s: float) -> dict[str, float]:
    """Sleep; return the shares of a core that the recorder's thread takes, and the helper."""
    start = thread_cpu_s(RECORDER_THREAD) or 0.0
    time.sleep(1.0)
    first = (thread_cpu_s(RECORDER_THREAD) or 0.0) - start
    time.sleep(BUSY_S - 1.0)
    pid = helper_pid(Path(os.environ["NANSCOPE_SPOOL"]))
    recorder_s, helper_s = thread_cpu_s(RECORDER_THREAD) or 0.0, process_cpu_s(pid)
    time.sleep(sleep_s)
    return {
        "first": first,
        "recorder": ((thread_cpu_s(RECORDER_THREAD) or 0.0) - recorder_s) / sleep_s,
        "helper": (process_cpu_s(pid) - helper_s) / sleep_s,
    }


def run_training(job: dict[str, Any]) -> None:
    """Train as the job says, and write what was measured to its file; ends with an exception if asked to."""
    model, optimizer, compute_loss = make_training(job["model"])
    # What is registered first is called last.
    atexit.register(lambda: Path(job["closed_file"]).write_text(str(time.monotonic())))
    result: dict[str, Any] = {}
    held, resident, free, kept = held_mib(), resident_mib(), free_mib(), None
    if job["kind"] == "watched":
        result["watch"] = begin_watching(model, optimizer)
    elif job["kind"] == "least":
        from smallest_start import SmallestRecorder

        kept = SmallestRecorder(model, optimizer)
    elif job["kind"] == "names":
        kept = [sys.intern(f"name_{number}") for number in range(NAMES)]
    wall, cpu = [], []
    for _ in range(job["steps"]):
        cpu_before, started = time.thread_time(), time.perf_counter()
        optimizer.zero_grad()
        compute_loss().backward()
        optimizer.step()
        wall.append((time.perf_counter() - started) * 1e3)
        cpu.append((time.thread_time() - cpu_before) * 1e3)
    result |= {"wall": wall, "cpu": cpu, "mib": resident_mib() - resident, "free": free_mib() - free}
    result["held"] = held_mib() - held
    del kept
    if job["sleep_s"]:
        result["idle"] = measure_idle(job["sleep_s"])
    result |= {"last_line": time.monotonic(), "cpu_s": time.process_time()}
    Path(job["file"]).write_text(json.dumps(result))
    if job["raises"]:
        raise ValueError("the end of this training")


# -- in the process that compares


def measure(
    model: str, *, kind: str = "watched", steps: int = STEPS, raises: bool = False, sleep_s: float = 0
) -> Any:
    """Run one training in a process of its own; returns its measurements with `exit_ms`."""
    with tempfile.TemporaryDirectory(prefix="bench-start") as folder:
        file, closed_file = str(Path(folder) / "result.json"), Path(folder) / "closed"
        job = {
            "model": model,
            "kind": kind,
            "steps": steps,
            "raises": raises,
            "sleep_s": sleep_s,
        }
        places = {"NANSCOPE_SPOOL": f"{folder}/spool", "NANSCOPE_CONNECT": "tcp://127.0.0.1:9"}
        places |= {"PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": BYTECODE}
        job |= {"file": file, "closed_file": str(closed_file)}
        command = [sys.executable, __file__, "--job", json.dumps(job)]
        process = subprocess.Popen(command, env=os.environ | places, stderr=subprocess.DEVNULL)
        _, status, usage = os.wait4(process.pid, 0)
        ended = time.monotonic()
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode != raises:
            raise RuntimeError(f"a training ended with {process.returncode}: {json.dumps(job)}")
        result = json.loads(Path(file).read_text())
        return result | {
            "exit_ms": (ended - result["last_line"]) * 1e3,
            "exit_cpu_ms": (usage.ru_utime + usage.ru_stime - result["cpu_s"]) * 1e3,
            "closed_ms": (float(closed_file.read_text()) - result["last_line"]) * 1e3,
        }


def in_turn(repeats: int, model: str, kinds: Sequence[str] = KINDS[:2], **options: Any) -> list[list[Any]]:
    """Trainings of some kinds in turn; the runs of each."""
    rounds = [[measure(model, kind=kind, **options) for kind in kinds] for _ in range(repeats)]
    return [list(runs) for runs in zip(*rounds, strict=True)]


def median(runs: list[Any], value: Callable[[Any], float]) -> float:
    """Median of a value over runs."""
    return statistics.median(value(run) for run in runs)


def report_watch_and_steps(model: str, repeats: int) -> None:
    """Print one model's lines about its start, its first steps and the memory."""
    plain, watched, least, named = in_turn(repeats, model, KINDS, steps=STEPS_FOR_MEMORY)
    took = {key: median(watched, lambda run, key=key: run["watch"][key]) for key in watched[0]["watch"]}
    print(
        f"{model:8} watch   {took['ms']:7.0f} ms ({took['cpu_ms']:.0f} of CPU), "
        f"{took['modules']:.0f} modules, {took['own_modules']:.0f} of them the probe's"
    )
    for clock in ("wall", "cpu"):
        for title, runs in (("plain", plain), ("watched", watched), ("least", least)):
            first = [median(runs, lambda run, n=n, c=clock: run[c][n]) for n in range(3)]
            quiet = median(runs, lambda run, c=clock: statistics.median(run[c][STEPS:]))
            later = median(runs, lambda run, c=clock: max(run[c][3:STEPS]))
            firsts = " ".join(f"{value:7.1f}" for value in first)
            line = f"first three {firsts}, longest of the other 17 {later:6.1f}, median {quiet:6.1f} ms"
            print(f"{model:8} {clock:4} {title:8} {line}")
    for title, runs in (("watched", watched), ("least", least), ("names", named)):
        added, free, held = (
            median(runs, lambda run, key=key: run[key]) - median(plain, lambda run, key=key: run[key])
            for key in ("mib", "free", "held")
        )
        print(
            f"{model:8} memory  {title:8} {added:5.1f} MiB added after {STEPS_FOR_MEMORY} steps, "
            f"{free:.1f} of them free in malloc's heap; {held:.1f} are held"
        )


def report_exit(repeats: int) -> None:
    """Print how much later a process ends."""
    for title, raises in (("normal", False), ("exception", True)):
        plain, watched = in_turn(repeats, "mlp", raises=raises)
        for key, what in (
            ("exit_ms", "in all"),
            ("exit_cpu_ms", "in all, CPU"),
            ("closed_ms", "until atexit"),
        ):
            before, after = (median(runs, lambda run, key=key: run[key]) for runs in (plain, watched))
            print(f"mlp      exit    {title:9} {what:12} {before:6.0f} ms, with the probe {after:6.0f} ms")


def report_idle(idle_s: float) -> None:
    """Print what the recorder's thread and the helper take of a core while nothing is trained."""
    idle = measure("mlp", sleep_s=idle_s)["idle"]
    first, recorder, helper = (100 * idle[name] for name in ("first", "recorder", "helper"))
    print(
        f"mlp      idle    {first:.2f} % of a core on the recorder's thread in the second after the last step"
    )
    print(
        f"mlp      idle    {recorder:.2f} % on the recorder's thread and {helper:.2f} % of the helper, "
        f"{recorder + helper:.2f} % in all, over {idle_s:g} s from then on"
    )


def main() -> None:
    """Measure what is asked for, and print it."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--models", nargs="+", default=["mlp", "modules", "tensors"])
    parser.add_argument("--idle-s", type=float, default=20.0)
    parser.add_argument("--job", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.job:
        run_training(json.loads(options.job))
        return
    measure("mlp", steps=3)
    if {"watch", "steps"} & set(options.only):
        for model in options.models:
            report_watch_and_steps(model, options.repeats)
    if "exit" in options.only:
        report_exit(options.repeats)
    if "idle" in options.only:
        report_idle(options.idle_s)


if __name__ == "__main__":
    main()
