"""Prints what the recorder's thread takes of a training whose steps C follows, and of what that consists.

    python tests/benchmarks/bench_recorder.py [--workloads mlp lstm] [--seconds 15] [--wakes 80]

*live*: CPU time of the thread in a step, and as a share of the training thread's in the same steps; how often
it wakes a second; and the helper's share. On a loaded machine steps take longer and wakes come as often, so
that the share is higher.

*replay*: the records of these steps are given once more to the same session, whose thread has ended: its
tasks are done here, by a clock that goes from one to the next, so that the load of the machine changes
nothing. Between two of them a step of another model of that kind is trained, which leaves the caches as a
training does. Printed are us of CPU time a step: in all, and of each part without the parts called in it.

*least* is the smallest program that takes the same records out of the ring and writes the same frames, at the
same moments: it judges nothing and marks nothing. *encode* is of it what makes the bytes of the frames.
"""

from __future__ import annotations

import argparse
import os
import struct
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from functools import wraps
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np
import psutil
import torch

sys.path.insert(0, str(Path(__file__).parents[2]))

from overhead_recorders import NO_DASHBOARD
from workloads import WORKLOADS, Workload

import probe
from probe.delivery.helper.helper import host_folder, lock_owner, lock_path
from probe.delivery.journal.segments import record_prefix
from probe.delivery.recorder.recorder import Recorder
from probe.delivery.recorder.ring import Ring
from probe.delivery.recorder.ring_format import ADDITION, RAW, UPDATE, frame_of, read_raw
from probe.measure.kernels import hot_binding
from probe.threads.watchdog import pulse
from probe.wire import Frame, decode_record, encode

SETTLED_AFTER: Final = 100
"""Steps that C has followed: the first looks at memory are over."""
MOST_SETTLING: Final = 1500
FEWEST_STEPS: Final = 30
MOST_KEPT: Final = 100
"""Modules are observed at one of so many steps, update ratios at two."""
MALLOC_SORTS: Final = 40_000
"""A request of so many bytes is looked for among all pieces that are free."""
STEP_AND_TIME: Final = struct.Struct("<qd")
TEMPLATE_AT: Final = 16


class Kept(NamedTuple):
    """A step as it lay in the ring, and what the training thread had noted of it beside."""

    records: list[tuple[int, bytes]]
    inputs: Any
    modules: Any


# -- live


class Live(NamedTuple):
    """What was measured while the model trained."""

    step_s: float
    """Wall time, without the probe's pauses."""
    training_us: float
    """CPU time of the training thread in a step."""
    recorder_us: float
    wakes: float
    """A second."""
    helper_us: float
    """CPU time of the helper in a step."""


def recorder_thread() -> threading.Thread:
    """The probe's own thread."""
    return next(one for one in threading.enumerate() if one.name == "nanscope-recorder")


def switches(thread: threading.Thread) -> int:
    """How often a thread has waited for something so far."""
    status = Path(f"/proc/self/task/{thread.native_id}/status").read_text()
    return int(next(line.split()[1] for line in status.splitlines() if line.startswith("voluntary")))


def helper_ns(run_folder: Path) -> int:
    """CPU time that the helper has taken so far; 0 where there is none."""
    owner = lock_owner(lock_path(host_folder(run_folder)))
    times = None if owner is None else psutil.Process(owner).cpu_times()
    return 0 if times is None else int(1e9 * (times.user + times.system))


def train_live(train: Callable[[], None], seconds: float, run_folder: Path) -> Live:
    """Train for so long and say what both threads took, and the helper."""
    thread = recorder_thread()
    assert thread.ident is not None
    clock = time.pthread_getcpuclockid(thread.ident)
    before = time.clock_gettime_ns(clock), time.thread_time_ns(), switches(thread), helper_ns(run_folder)
    begun_s, steps = time.perf_counter(), 0
    while steps < FEWEST_STEPS or time.perf_counter() - begun_s < seconds:
        train()
        steps += 1
    wall_s = time.perf_counter() - begun_s
    after = time.clock_gettime_ns(clock), time.thread_time_ns(), switches(thread), helper_ns(run_folder)
    taken = [late - early for late, early in zip(after, before, strict=True)]
    recorder_us, training_us, _, helper_us = (one / steps / 1e3 for one in taken)
    return Live(wall_s / steps, training_us, recorder_us, taken[2] / wall_s, helper_us)


# -- what is given once more


class Tape:
    """Keeps the newest steps that leave a session's ring."""

    def __init__(self, run: Any) -> None:
        self.recorder: Recorder = run._recorder
        self.records = run._tracker._records
        self.steps: dict[int, Kept] = {}
        self._next_byte = 0
        self._inputs: dict[int, Any] = {}
        self._modules: dict[int, Any] = {}
        self._before_take = self.recorder._metrics.before_take
        self.recorder._metrics.before_take = self._keep
        self._note(self.records, "note_inputs", self._inputs)
        self._note(self.records, "note_modules", self._modules)

    @staticmethod
    def _note(records: Any, name: str, kept: dict[int, Any]) -> None:
        note = getattr(records, name)

        def keep(step: int, value: Any) -> None:
            kept[step] = value
            note(step, value)

        setattr(records, name, keep)

    def _keep(self) -> None:
        step = None
        for record in self.recorder.ring.records(self._next_byte):
            self._next_byte = record.end
            payload = bytes(record.payload)
            if record.kind == RAW:
                step = STEP_AND_TIME.unpack_from(payload)[0]
                self.steps[step] = Kept([], self._inputs.pop(step, None), self._modules.pop(step, None))
            if step in self.steps and record.kind in (RAW, UPDATE, ADDITION):
                self.steps[step].records.append((record.kind, payload))
            while len(self.steps) > MOST_KEPT:
                del self.steps[next(iter(self.steps))]
        self._before_take()

    def stop(self) -> list[Kept]:
        """Have the recorder's thread end without the run's end; return what was kept of the last template."""
        thread = recorder_thread()
        self.recorder.flush()
        self.recorder._closed = True
        self.recorder._wake.ring()
        thread.join(5.0)
        self.recorder._closed = False
        self.recorder._metrics.before_take = self._before_take
        template = max(self.recorder.ring.templates)
        return [
            kept
            for kept in self.steps.values()
            if struct.unpack_from("<q", kept.records[0][1], TEMPLATE_AT)[0] == template
        ]


def shuffled(kept: list[Kept]) -> Iterator[Kept]:
    """Yield the newest steps in any order, without end: a run whose series scatter and go nowhere."""
    random = np.random.default_rng(0)
    while True:
        for at in random.permutation(min(len(kept), MOST_KEPT)):
            yield kept[-1 - at]


def renumbered(kind: int, payload: bytes, step: int, at_s: float) -> bytes:
    """The same record of another step."""
    if kind == ADDITION:
        frame = decode_record(payload)
        assert isinstance(frame, Frame)
        return encode(msgspec.structs.replace(frame, step=step, time=at_s))
    changed = bytearray(payload)
    STEP_AND_TIME.pack_into(changed, 0, step, at_s)
    return bytes(changed)


# -- the parts


class Parts:
    """CPU time of functions, each without those that it calls; and how often they were called."""

    def __init__(self) -> None:
        self.ns: dict[str, int] = {}
        self.calls: dict[str, int] = {}
        self._inner_ns = 0
        self._undo: list[Callable[[], None]] = []
        self.is_on = True

    def time(self, owner: Any, name: str, part: str) -> None:
        """Count a method, or a module's function, as one of the part's."""
        function = getattr(owner, name)

        @wraps(function)
        def timed(*args: Any, **kwargs: Any) -> Any:
            outer_ns, self._inner_ns = self._inner_ns, 0
            started_ns = time.thread_time_ns()
            try:
                return function(*args, **kwargs)
            finally:
                taken_ns = time.thread_time_ns() - started_ns
                self.ns[part] = self.ns.get(part, 0) + taken_ns - self._inner_ns
                self.calls[part] = self.calls.get(part, 0) + 1
                self._inner_ns = outer_ns + taken_ns

        setattr(owner, name, timed)
        self._undo.append(lambda: setattr(owner, name, function))

    def restore(self) -> None:
        """Put the functions back."""
        for undo in reversed(self._undo):
            undo()

    def clear(self) -> None:
        """Forget what was counted so far."""
        self.ns, self.calls = {}, {}


def time_parts(parts: Parts, run: Any) -> None:
    """Count what the recorder's thread does of this session."""
    from probe.delivery.helper.helper import HelperKeeper
    from probe.delivery.journal.journal import JournalWriter
    from probe.delivery.recorder import metrics_queue, ring_format
    from probe.delivery.recorder import recorder as recorder_module
    from probe.detectors.jump_watch import JumpWatch
    from probe.incidents.incidents import IncidentReporter
    from probe.loop import followed_records, sample_judge, step_queue

    recorder, tracker = run._recorder, run._tracker
    incidents = run._incidents
    parts.time(recorder, "_work", "the rest: which task is due")
    parts.time(metrics_queue.MetricsQueue, "write", "frames: take them out of the ring")
    parts.time(metrics_queue.MetricsQueue, "_groups", "frames: read, make")
    parts.time(ring_format, "encode", "frames: encode")
    parts.time(Ring, "take", "frames: mark what is moved")
    parts.time(JournalWriter, "append_many", "frames: write")
    parts.time(tracker._records, "take", "step: take from the ring")
    parts.time(followed_records, "measured_of", "step: view")
    parts.time(step_queue.StepQueue, "look", "judge: queue")
    parts.time(step_queue, "build_batch", "judge: arrange")
    parts.time(IncidentReporter, "judge_quiet", "judge: episodes")
    bank = incidents._detectors
    parts.time(bank, "observe_batch", "judge: bank")
    parts.time(JumpWatch, "note", "judge: JumpWatch")
    parts.time(JumpWatch, "judge", "judge: JumpWatch")
    for detector in bank._detectors:
        part = f"judge: {type(detector).__name__}"
        parts.time(detector, "learn_quiet", part)
        parts.time(detector, "observe", f"{part}, one by one")
    parts.time(incidents.recent, "note", "judge: what an event tells of before")
    parts.time(sample_judge.SampleJudge, "take", "sample: episodes")
    parts.time(sample_judge, "build_sample", "sample: arrange")
    parts.time(type(recorder.processors), "look", "tend: waits for a processor")
    samples = tracker._records._samples._bank
    for detector in samples._detectors:
        parts.time(detector, "observe", f"sample: {type(detector).__name__}")
    for watch in recorder.watches:
        if type(watch).__name__ != "StepQueue":
            parts.time(watch, "look", f"watch: {type(watch).__name__}")
    # Not `_tend` itself: it is known to the schedule as this very method.
    for name in ("read_memory", "is_listened_to"):
        parts.time(recorder_module, name, "once a second: memory, helper")
    parts.time(HelperKeeper, "ensure", "once a second: memory, helper")


# -- replay


class Replay:
    """One session's tasks, done step after step by a clock of its own."""

    def __init__(self, run: Any, kept: list[Kept], live: Live, disturb: Callable[[], None]) -> None:
        self.recorder: Recorder = run._recorder
        self._records = run._tracker._records
        self._steps = shuffled(kept)
        # What a step takes on a processor of its own.
        self._step_s, self._disturb = live.training_us / 1e6, disturb
        self._step = 1 + max(STEP_AND_TIME.unpack_from(one.records[0][1])[0] for one in kept)
        self._now_s = time.monotonic()
        self._offset_s = time.time() - self._now_s
        self._next_step_s = self._now_s
        self.recorder._schedule._clock = lambda: self._now_s

    def steps_until(self, end_s: float) -> int:
        """Append what a training records until then."""
        count = 0
        while self._next_step_s <= end_s:
            one, count = next(self._steps), count + 1
            self._records.note_inputs(self._step, one.inputs)
            self._records.note_modules(self._step, one.modules)
            for kind, payload in one.records:
                data = renumbered(kind, payload, self._step, self._next_step_s + self._offset_s)
                assert self.recorder.ring.append(kind, data), "the ring is full"
            self._step += 1
            self._next_step_s += self._step_s
        pulse.beats += 6 * count
        return count

    def _leave_caches(self) -> None:
        """Train, and have malloc sort what that has freed: 0.5 ms with 2,000 tensors.

        The recorder's thread has an arena of its own, and does not come upon it.
        """
        self._disturb()
        bytearray(MALLOC_SORTS)

    def wakes(self, count: int) -> tuple[int, int]:
        """Do what is due at so many wakes; return the steps that came, and the CPU time in ns."""
        steps = spent_ns = 0
        for _ in range(count):
            self._now_s += max(self.recorder._schedule.wait_s, 0.001)
            steps += self.steps_until(self._now_s)
            self._leave_caches()
            started_ns = time.thread_time_ns()
            self.recorder._work()
            spent_ns += time.thread_time_ns() - started_ns
        return steps, spent_ns

    def least(self, count: int, folder: Path) -> tuple[int, int, int]:
        """Take and write the same frames, four times a second; steps, CPU time in ns, that of encoding."""
        ring = self.recorder.ring
        ring.take(
            end=ring.counters.head,
            end_seq=ring.counters.next_seq,
            records=0,
            next_seq=-1,
            store=lambda: None,
        )
        descriptor = os.open(folder / "least", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        steps = spent_ns = encode_ns = 0
        for _ in range(count):
            self._now_s += 0.25
            steps += self.steps_until(self._now_s)
            self._leave_caches()
            started_ns = time.thread_time_ns()
            counters, templates = ring.counters, ring.templates
            frames, end = [], counters.tail
            for record in ring.records():
                end = record.end
                if record.kind == RAW:
                    raw = read_raw(record.payload)
                    frames.append(frame_of(templates[raw.template], raw))
            encoding_ns = time.thread_time_ns()
            encoded = [encode(frame) for frame in frames]
            encode_ns += time.thread_time_ns() - encoding_ns
            if encoded:
                os.writev(descriptor, [part for one in encoded for part in (record_prefix(one), one)])
            ring._numbers[4] = end
            spent_ns += time.thread_time_ns() - started_ns
        os.close(descriptor)
        return steps, spent_ns, encode_ns


def measure(workload: Workload, options: argparse.Namespace) -> None:
    """Train, print what was live, then what the parts take."""
    torch.manual_seed(0)
    model, compute_loss = workload.make(torch.device("cpu"))
    optimizer = workload.make_optimizer(model.parameters())
    twin, twin_loss = workload.make(torch.device("cpu"))
    twin_optimizer = workload.make_optimizer(twin.parameters())

    def train() -> None:
        optimizer.zero_grad()
        compute_loss().backward()
        optimizer.step()

    def train_twin() -> None:
        twin_optimizer.zero_grad()
        twin_loss().backward()
        twin_optimizer.step()

    with tempfile.TemporaryDirectory(prefix="bench-recorder", ignore_cleanup_errors=True) as folder:
        run: Any = probe.watch(
            model, optimizer, spool=Path(folder), connect=NO_DASHBOARD, run="recorder", overhead_limit=0
        )
        calls, followed = hot_binding.status().calls, 0
        for _ in range(MOST_SETTLING):
            train()
            followed = followed + 1 if calls is not None and calls.state.armed else 0
            if followed >= options.settle:
                break
        parts = Parts()
        if options.parts_of_live:
            time_parts(parts, run)
        live = train_live(train, options.seconds, Path(folder) / "recorder")
        parts.restore()
        share = 100 * live.recorder_us / live.training_us
        print(
            f"{workload.title:18} live: {live.recorder_us:7.0f} us a step of {live.training_us / 1e3:6.1f} "
            f"ms, {share:5.2f} %; {live.wakes:.0f} wakes a second; "
            f"helper {100 * live.helper_us / live.training_us:.2f} %"
        )
        if options.parts_of_live:
            print_parts(parts, max(options.seconds / live.step_s, FEWEST_STEPS), options.least_us)
        tape = Tape(run)
        for _ in range(options.kept):
            train()
        kept = tape.stop()
        if options.wakes:
            replay(run, kept, live, train_twin, options, Path(folder))
        run.close()


def replay(
    run: Any,
    kept: list[Kept],
    live: Live,
    disturb: Callable[[], None],
    options: argparse.Namespace,
    folder: Path,
) -> None:
    """Print what the recorder's tasks take of a step, in all and in parts."""
    again = Replay(run, kept, live, disturb)
    again.wakes(options.wakes // 4)
    steps, spent_ns = again.wakes(options.wakes)
    in_all = spent_ns / steps / 1e3
    parts = Parts()
    time_parts(parts, run)
    again.wakes(1)
    parts.clear()
    part_steps, timed_ns = again.wakes(options.wakes)
    parts.restore()
    least_steps, least_ns, encode_ns = again.least(options.wakes, folder)
    share = 100 * in_all / live.training_us
    least_us, encode_us = least_ns / least_steps / 1e3, encode_ns / least_steps / 1e3
    print(
        f"{'':18} replay: {in_all:5.0f} us a step, {share:5.2f} %, {steps} steps in {options.wakes} wakes; "
        f"least {least_us:.0f} ({100 * least_us / live.training_us:.2f} %), of it encode {encode_us:.0f}; "
        f"timed in parts {timed_ns / part_steps / 1e3:.0f}"
    )
    print_parts(parts, part_steps, options.least_us)


def print_parts(parts: Parts, steps: float, least_us: float) -> None:
    """Print the largest first."""
    groups: dict[str, float] = {}
    for part, ns in parts.ns.items():
        group = part.split(":")[0]
        groups[group] = groups.get(group, 0.0) + ns / steps / 1e3
    print(f"{'':18} " + ", ".join(f"{group} {us:.0f}" for group, us in sorted(groups.items())))
    for part, ns in sorted(parts.ns.items(), key=lambda item: -item[1]):
        us = ns / steps / 1e3
        if us >= least_us:
            print(f"{us:26.1f} us, {parts.calls[part] / steps:6.2f} calls a step  {part}")


def main() -> None:
    """Measure what is asked for."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--workloads", nargs="+", choices=WORKLOADS, default=list(WORKLOADS))
    parser.add_argument("--seconds", type=float, default=15.0, help="how long is measured live")
    parser.add_argument("--settle", type=int, default=SETTLED_AFTER, help="steps that C follows before")
    parser.add_argument("--kept", type=int, default=MOST_KEPT, help="steps that are given once more")
    parser.add_argument("--wakes", type=int, default=80, help="of the replay; 0 for none")
    parser.add_argument("--parts-of-live", action="store_true", help="of which one call costs 1 us more")
    parser.add_argument("--least-us", type=float, default=1.0, help="parts below it are not printed")
    options = parser.parse_args()
    torch.set_num_threads(1)
    np.seterr(all="ignore")
    for workload in WORKLOADS.values():
        if workload.name in options.workloads:
            measure(workload, options)


if __name__ == "__main__":
    main()
