"""Faults at random for half an hour, while two trainings and three pages run: what is lost, and what grows.

    make soak [SOAK_MINUTES=30] [SOAK_SEED=...]

Trainings and helpers are killed, alone and at once, the server is stopped for a moment, and killed once,
after half of the time. Prints the seed, what was done, the account of delivery
(`tests/integration/trial.py`), and of each kind of process resident memory and descriptors: start, median,
maximum and slope an hour; of the server for each of its two lives. Ends with 1 where the account does not
balance, the server ever has more than 350 MB, or a life of it of eight minutes and more still grows in its
last third.
"""

from __future__ import annotations

import os
import signal
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path

import psutil

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "integration"))

from forked_scripts import TORCH, ForkedScripts
from page_clients import PageClients
from trial import Trial
from trial_fixtures import HEAD

PAGES = 3
SAMPLE_S = 2.0
SETTLED_S = 60.0
"""A process's first minute fills caches; slopes begin after it, where it lives longer than twice that."""
LIMIT_MB = 350.0
"""What is filled once: see docs/reliability.md, which adds it up."""
LEVEL_S = 480.0
MOST_GROWTH = 1.1
"""Of the last third's median to the middle third's."""
RUNS = ("a", "b")
Sample = tuple[float, float, int]
"""Monotonic seconds, resident MB, descriptors."""


class Watcher:
    """Samples of processes, by what they are and which life it is."""

    def __init__(self) -> None:
        self.samples: dict[tuple[str, int], list[Sample]] = defaultdict(list)

    def look(self, trial: Trial) -> None:
        """Take one sample of each that lives."""
        pids = {"serve": trial.server.pid if trial.server else None}
        for run in RUNS:
            pids |= {f"helper {run}": trial.helper_pid(run), f"trainer {run}": trial.trainers[run].pid}
        for name, pid in pids.items():
            if pid is None:
                continue
            try:
                process = psutil.Process(pid)
                memory, descriptors = process.memory_info().rss / 1e6, process.num_fds()
            except psutil.Error:
                continue
            self.samples[name, pid].append((time.monotonic(), memory, descriptors))

    def table(self) -> list[str]:
        """A row for the longest lives of each, and how many lives there were."""
        lines = ["process      lives  seconds   MB start  median     max  an hour   fds start  median   max"]
        for name in sorted({name for name, _ in self.samples}):
            lives = sorted((found for (of, _), found in self.samples.items() if of == name), key=len)
            for found in lives[-2 if name == "serve" else -1 :]:
                lines.append(f"{name:12} {len(lives):5} {row(found)}")
        return lines

    def growth(self, name: str) -> list[float]:
        """Last third's median of memory to the middle third's, of each life that is long enough."""
        found = []
        for (of, _), life in self.samples.items():
            if of == name and life[-1][0] - life[0][0] >= LEVEL_S:
                third = len(life) // 3
                middle, last = life[third : 2 * third], life[2 * third :]
                found.append(
                    statistics.median(one[1] for one in last) / statistics.median(one[1] for one in middle)
                )
        return found

    def largest(self, name: str) -> float:
        """Most MB that it ever had."""
        return max(one[1] for (of, _), found in self.samples.items() if of == name for one in found)


def row(found: list[Sample]) -> str:
    """Figures of one life."""
    lasted = found[-1][0] - found[0][0]
    settled = [one for one in found if one[0] - found[0][0] > SETTLED_S] if lasted > 2 * SETTLED_S else found
    times, memory = [one[0] for one in settled], [one[1] for one in settled]
    slope = 3600 * statistics.linear_regression(times, memory).slope if len(set(times)) > 1 else 0.0
    all_memory, descriptors = [one[1] for one in found], [one[2] for one in found]
    return (
        f"{lasted:8.0f}   {found[0][1]:8.1f} {statistics.median(all_memory):7.1f} {max(all_memory):7.1f} "
        f"{slope:+8.1f}   {descriptors[0]:9} {statistics.median(descriptors):7.0f} {max(descriptors):5}"
    )


def make_fault(trial: Trial) -> None:
    """One of the faults, by chance."""
    run = trial.chance.choice(RUNS)
    what = trial.chance.choice(["trainer", "helper", "both", "stopped"])
    if what == "stopped":
        assert trial.server is not None
        trial.server.send_signal(signal.SIGSTOP)
        trial.count("serve stopped")
        trial.wait_for_steps(run, 200)
        trial.server.send_signal(signal.SIGCONT)
        return
    if what in ("helper", "both"):
        trial.kill_helper(run)
    if what in ("trainer", "both"):
        trial.kill_training(run)
        start(trial, run)


def start(trial: Trial, run: str) -> None:
    """A training of 40 layers, some fifty steps a second."""
    trial.start_training(run, pause_s=0.015, layers=40, events=50)


def soak(trial: Trial, minutes: float) -> Watcher:
    """Run it; return the samples."""
    watcher = Watcher()
    trial.start_server()
    for run in RUNS:
        start(trial, run)
    pages = PageClients(lambda: (trial.client().url, trial.token()), PAGES)
    pages.start()
    began = time.monotonic()
    end, half = began + 60 * minutes, began + 30 * minutes
    next_fault, has_been_killed = began + 20, False
    while (now := time.monotonic()) < end:
        watcher.look(trial)
        if now > half and not has_been_killed:
            has_been_killed = True
            trial.kill_server()
            trial.start_server()
        elif now > next_fault:
            make_fault(trial)
            next_fault = time.monotonic() + trial.chance.uniform(5, 25)
        time.sleep(SAMPLE_S)
    pages.stop()
    print(f"pages: {pages.messages:,} messages, {pages.bytes / 1e6:,.0f} MB, {pages.reconnects} reconnects")
    for run in RUNS:
        trial.kill_training(run)
    return watcher


def main() -> int:
    minutes = float(os.environ.get("SOAK_MINUTES") or 30)
    seed = int(os.environ.get("SOAK_SEED") or time.time_ns() % 10**6)
    print(f"SOAK_SEED {seed}, {minutes:g} minutes", flush=True)
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    dashboard = ("dashboard.serving.server", "dashboard.ingest.spool", "probe.delivery.recorder.recorder")
    with ForkedScripts(*TORCH, "probe.session") as torch, ForkedScripts(*dashboard) as serves:
        with tempfile.TemporaryDirectory() as folder:
            trial = Trial(Path(folder), seed, torch, serves)
            try:
                watcher = soak(trial, minutes)
                trial.settle()
                account = trial.check()
            finally:
                trial.close()
    print("\n".join([HEAD, account.line("soak", seed), "", *watcher.table()]))
    largest, growth = watcher.largest("serve"), watcher.growth("serve")
    grown = ", ".join(f"{100 * (one - 1):+.1f} %" for one in growth) or "too short to say"
    print(f"serve: {largest:.0f} MB of at most {LIMIT_MB:.0f}; last third to middle third: {grown}")
    return int(largest > LIMIT_MB or any(one > MOST_GROWTH for one in growth))


if __name__ == "__main__":
    sys.exit(main())
