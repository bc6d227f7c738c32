"""Prints what recording costs in loops as people write them, from the first step on, and the floor of it.

    python tests/benchmarks/one_road.py [LOOP ...] [--pairs 7] [--json FILE]

The loops are those of `tests/loops`; those whose package is not installed are left out, and that is said.
Every run is a process of its own, forked where all is imported, in turn plain and watched. Microseconds of
CPU time of the training thread, medians over the pairs with quartiles:

- *plain*: a step;
- *floor*: one pass of the kernel over all gradients of an update, in such a process, and nothing else;
- *first 100*: a watched step above its plain twin's, mean over the first hundred; *later*: median of others;
- *longest*: of all watched steps, above the plain median, in ms; a replay counts too;
- *watch*: the call that begins it, in ms;
- *program*: CPU time of the whole process tree over the plain one's, the helper and all threads included,
  with `watch` and `close`, without the imports;
- *no Python*: percent of the steps in which no function of ours ran on the training thread, in the first
  hundred and later; in brackets those in which only the wrappers round torch's functions did;
- *calls*: of functions of ours on that thread, the median of a step.
"""

from __future__ import annotations

import argparse
import ctypes
import itertools
import json
import os
import resource
import signal
import statistics
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).parents[2]))
sys.path.insert(0, str(Path(__file__).parents[1] / "loops"))

import torch
from run_loop import NAMES, NEEDED, load, seed, weights_of

import probe
from probe.measure.kernels import binding
from probe.measure.kernels.binding import Batch

ROOT: Final = Path(__file__).parents[2]
FIRST: Final = 100
OURS: Final = str(ROOT / "probe") + os.sep
WRAPPERS: Final = (
    "hooks.py",
    "call_wrappers.py",
    "module_call.py",
    "optimizer_steps.py",
    "root_calls.py",
    "armed_calls.py",
)
"""Of `probe/attach`: what stands in the place of a function of torch."""
COLUMNS: Final = (
    *("loop", "steps", "weights", "plain", "floor", "first 100", "later", "longest, ms", "watch, ms"),
    *("program", "no Python: first 100", "later", "calls"),
)
SUBREAPER: Final = 36
HELPER_S: Final = 1.0
"""What a helper may take to ship the end of a run, before it is told to go."""


class Run:
    """One training in this process."""

    def __init__(self, name: str, way: str, spool: Path) -> None:
        self._name, self._way, self._spool = name, way, spool
        self._clock: list[float] = []
        self._calls: list[tuple[int, int]] = []
        """Of each step: our functions but the wrappers, and the wrappers."""
        self._own = self._wrapped = 0
        self._watch_s: list[float] = []
        self._floor_s: list[float] = []
        self._sessions: list[Any] = []

    def train(self, steps: int | None) -> dict[str, Any]:
        """Train the loop; return all that was measured."""
        loop = load(self._name)
        seed()
        self._clock.append(time.thread_time())
        models = loop.train(steps or loop.STEPS, self._watch, self._tick)
        sys.setprofile(None)
        for session in self._sessions:
            session.close()
        return {
            "weights": weights_of(models),
            "steps": [later - before for before, later in itertools.pairwise(self._clock)],
            "calls": self._calls,
            "watch_s": self._watch_s,
            "floor_s": self._floor_s,
        }

    def _watch(self, model: Any, optimizer: Any) -> Callable[[], None]:
        if self._way == "floor":
            Floor(optimizer, self._floor_s)
        if self._way not in ("watched", "counted"):
            return lambda: None
        began = time.thread_time()
        run = f"{self._name}-{len(self._sessions)}"
        session = probe.watch(model, optimizer, run=run, spool=self._spool, connect="tcp://127.0.0.1:9")
        self._watch_s.append(time.thread_time() - began)
        self._sessions.append(session)
        if self._way == "counted":
            sys.setprofile(self._profile)
        return session.close

    def _tick(self) -> None:
        self._clock.append(time.thread_time())
        self._calls.append((self._own, self._wrapped))
        self._own = self._wrapped = 0

    def _profile(self, frame: Any, event: str, argument: object) -> None:
        if event == "call" and (path := frame.f_code.co_filename).startswith(OURS):
            is_wrapper = path.startswith(OURS + "attach") and path.endswith(WRAPPERS)
            self._wrapped += is_wrapper
            self._own += not is_wrapper


class Floor:
    """The pass over an optimizer's gradients alone, before each of its updates."""

    def __init__(self, optimizer: torch.optim.Optimizer, taken_s: list[float]) -> None:
        kernel = binding.kernel()
        assert kernel is not None, binding.status().reason
        self._kernel, self._taken_s = kernel, taken_s
        self._batches: dict[int, Batch] = {}
        optimizer.register_step_pre_hook(self._measure)

    def _measure(self, optimizer: torch.optim.Optimizer, *_: object) -> None:
        gradients = [p.grad for group in optimizer.param_groups for p in group["params"]]
        batch = self._batches.get(len(gradients)) or self._batches.setdefault(
            len(gradients), Batch(len(gradients))
        )
        began = time.perf_counter()
        self._kernel.measure_list(batch, gradients)
        self._taken_s.append(time.perf_counter() - began)


def in_process(name: str, way: str, steps: int | None) -> dict[str, Any]:
    """Train one loop in a process that is forked from this one, which trains nothing.

    Raises:
        RuntimeError: it has failed.
    """
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        result = Path(folder) / "result.json"
        child = os.fork()
        if child == 0:
            try:
                result.write_text(json.dumps(Run(name, way, Path(folder) / "spool").train(steps)))
            except Exception:  # noqa: BLE001 - the parent says that it failed
                traceback.print_exc()
            finally:
                # Nothing that this process has forked with it may run a second time.
                os._exit(not result.exists())
        used = os.wait4(child, 0)[2]
        if not result.exists():
            raise RuntimeError(f"{name}, {way}: failed")
        found: dict[str, Any] = json.loads(result.read_text())
        found["tree_s"] = used.ru_utime + used.ru_stime + orphans_s()
        return found


def orphans_s() -> float:
    """CPU time of the helper, which has become a child of ours; it is over then."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    deadline = time.monotonic() + HELPER_S
    while True:
        try:
            ended, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            break
        if ended == 0 and time.monotonic() > deadline:
            for path in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split():
                os.kill(int(path), signal.SIGTERM)
            deadline += 5.0
        time.sleep(0.01)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def spread(values: list[float], digits: int = 0) -> str:
    """Median, and the quartiles of several."""
    if not values:
        return "-"
    ordered = sorted(values)
    low, high = ordered[len(ordered) // 4], ordered[-1 - len(ordered) // 4]
    return f"{statistics.median(ordered):.{digits}f} [{low:.{digits}f}, {high:.{digits}f}]"


def above_us(
    watched: dict[str, Any], plain: dict[str, Any], middle: Callable[[list[float]], float], part: slice
) -> float | None:
    """What a part of a watched run's steps takes above that of its twin's; None where there are none."""
    own, other = watched["steps"][part], plain["steps"][part]
    return 1e6 * (middle(own) - middle(other)) if own else None


def free_of(steps: list[list[int]]) -> str:
    """Of a hundred steps those without any call of ours, and those with calls of wrappers alone."""
    if not steps:
        return "-"
    shares = [
        statistics.fmean(map(is_free, steps))
        for is_free in (lambda one: not sum(one), lambda one: not one[0])
    ]
    return f"{100 * shares[0]:.0f} ({100 * shares[1]:.0f})"


def measure(name: str, pairs: int, steps: int | None) -> dict[str, Any]:
    """All figures of one loop."""
    runs: dict[str, list[dict[str, Any]]] = {"plain": [], "watched": []}
    for pair in range(pairs):
        for way in ("plain", "watched") if pair % 2 == 0 else ("watched", "plain"):
            runs[way].append(in_process(name, way, steps))
    counted, floor = in_process(name, "counted", steps), in_process(name, "floor", steps)
    both = list(zip(runs["plain"], runs["watched"], strict=True))
    plain_us = 1e6 * statistics.median(step for run in runs["plain"] for step in run["steps"])
    firsts = [above_us(watched, plain, statistics.fmean, slice(1, FIRST)) for plain, watched in both]
    others = [above_us(watched, plain, statistics.median, slice(FIRST, None)) for plain, watched in both]
    early, late = counted["calls"][1:FIRST], counted["calls"][FIRST:]
    return {
        "loop": name,
        "steps": len(counted["calls"]),
        "weights": "equal"
        if len({run["weights"] for one in runs.values() for run in one}) == 1
        else "NOT EQUAL",
        "plain": f"{plain_us:.0f}",
        "floor": spread([1e6 * one for one in floor["floor_s"]], 1),
        "first": spread([us for us in firsts if us is not None]),
        "later": spread([us for us in others if us is not None]),
        "longest": spread([1e3 * max(run["steps"][1:]) - plain_us / 1e3 for run in runs["watched"]]),
        "watch": spread([1e3 * run["watch_s"][0] for run in runs["watched"]]),
        "program": spread([watched["tree_s"] / plain["tree_s"] for plain, watched in both], 2),
        "free_first": free_of(early),
        "free_later": free_of(late),
        "calls": statistics.median(own + wrapped for own, wrapped in counted["calls"]),
    }


def main() -> None:
    """Measure what was asked for, and print a row of a table for each."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("loops", nargs="*", default=NAMES, metavar="LOOP")
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--steps", type=int, help="of each loop; by default its own number")
    parser.add_argument("--json", type=Path, metavar="FILE", help="a line for each loop is added to it")
    options = parser.parse_args()
    os.environ.update(NANSCOPE_QUIET="1", HF_HUB_OFFLINE="1", OMP_NUM_THREADS="1")
    ctypes.CDLL(None).prctl(SUBREAPER, 1, 0, 0, 0)
    torch.set_num_threads(1)
    print("| " + " | ".join(COLUMNS) + " |")
    print("|---" * len(COLUMNS) + "|")
    for name in options.loops:
        if find_spec(NEEDED.get(name, "torch")) is None:
            print(f"| {name}: left out, {NEEDED[name]} is not installed |")
            continue
        load(name)
        row = measure(name, options.pairs, options.steps)
        print("| " + " | ".join(map(str, row.values())) + " |", flush=True)
        if options.json:
            with options.json.open("a") as file:
                file.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()
