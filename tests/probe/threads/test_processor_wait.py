"""The share of the time for which this process had to wait for a processor."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from probe.threads.processor_wait import ProcessorWait


class Threads:
    """A folder like `/proc`, and a clock."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.now = folder, 100.0
        self.ran_s: dict[str, float] = {}
        self.wait = ProcessorWait(folder, lambda: self.now)

    def set(self, process: str = "self", **waited_s: float) -> None:
        for name, seconds in waited_s.items():
            folder = self.folder / process / "task" / name
            folder.mkdir(exist_ok=True, parents=True)
            ran_s = self.ran_s.get(name, 0.0)
            (folder / "schedstat").write_text(f"{int(ran_s * 1e9)} {int(seconds * 1e9)} 7\n")

    def share_after(self, seconds: float) -> float:
        self.now += seconds
        self.wait.look()
        return self.wait.share()


@pytest.fixture
def threads(tmp_path: Path) -> Threads:
    return Threads(tmp_path)


def test_share_is_the_time_without_the_sum_of_the_waits(threads: Threads) -> None:
    threads.set(main=5.0, worker=1.0)
    assert threads.share_after(0.0) == 1.0
    threads.set(main=5.5, worker=2.0)
    assert threads.share_after(2.0) == pytest.approx(0.25)


def test_share_stays_until_the_next_look(threads: Threads) -> None:
    threads.set(main=0.0)
    threads.wait.look()
    threads.set(main=1.0)
    assert threads.share_after(2.0) == pytest.approx(0.5)
    threads.set(main=1.4)
    assert threads.share_after(0.5) == pytest.approx(0.5)
    assert threads.share_after(1.5) == pytest.approx(0.8)


def test_share_of_a_long_step_is_that_of_all_its_time(threads: Threads) -> None:
    threads.set(main=0.0)
    threads.wait.look()
    for waited_s in (0.8, 1.2, 1.2, 1.2):
        threads.set(main=waited_s)
        threads.share_after(1.0)
    assert threads.wait.share() == 1.0
    assert threads.wait.share(2.0) == 1.0
    assert threads.wait.share(3.0) == pytest.approx(1.0 - 0.4 / 3)
    assert threads.wait.share(60.0) == pytest.approx(0.7)


def test_share_counts_the_worker_that_waits_longest(
    threads: Threads, monkeypatch: pytest.MonkeyPatch
) -> None:
    workers = [SimpleNamespace(pid=pid) for pid in (7, 8, 9)]
    monkeypatch.setattr("multiprocessing.process._children", workers)
    for process in ("self", "7", "8"):
        threads.set(process, main=0.0)
    threads.wait.look()
    for process, waited_s in (("self", 0.2), ("7", 0.4), ("8", 1.0), ("9", 50.0), ("10", 50.0)):
        threads.set(process, main=waited_s)
    assert threads.share_after(2.0) == pytest.approx(0.4)


@pytest.mark.parametrize(
    ("ran_s", "share"),
    [({"main": 0.5}, 0.25), ({"main": 0.5, "other": 0.02}, 0.25), ({"main": 0.5, "other": 0.3}, 0.05)],
    ids=["alone", "another that rests", "together"],
)
def test_share_is_no_less_than_what_the_one_thread_ran_that_computes(
    threads: Threads, ran_s: dict[str, float], share: float
) -> None:
    threads.set(main=0.0, other=0.0)
    threads.wait.look()
    threads.ran_s = ran_s
    threads.set(main=1.5, other=0.4)
    assert threads.share_after(2.0) == pytest.approx(share)


def test_share_leaves_out_the_wait_of_the_thread_that_looks(threads: Threads) -> None:
    own = str(threading.get_native_id())
    threads.set(main=0.0, **{own: 0.0})
    threads.wait.look()
    threads.set(main=1.0, **{own: 0.8})
    assert threads.share_after(2.0) == pytest.approx(0.5)


def test_share_is_known_before_the_second_look(threads: Threads) -> None:
    own = str(threading.get_native_id())
    threads.set(**{own: 0.0})
    threads.wait.look()
    threads.set(**{own: 0.04})
    threads.now += 0.05
    assert threads.wait.share(1.0) == 1.0
    threads.set(other=0.0, **{own: 0.1})
    threads.now += 0.15
    assert threads.wait.share(1.0) == pytest.approx(0.5)
    threads.set(**{own: 1.5})
    assert threads.wait.share(1.0) == pytest.approx(0.5)
    assert threads.share_after(1.8) == pytest.approx(1.0)


def test_share_takes_no_account_of_a_thread_that_is_new(threads: Threads) -> None:
    threads.set(main=0.0)
    threads.wait.look()
    threads.set(main=0.0, other=50.0)
    assert threads.share_after(2.0) == 1.0


def test_share_is_never_below_zero(threads: Threads) -> None:
    threads.set(main=0.0, other=0.0)
    threads.wait.look()
    threads.set(main=1.5, other=1.5)
    assert threads.share_after(2.0) == 0.0


@pytest.mark.parametrize("text", ["", "123\n", "none\n"])
def test_share_is_one_where_nothing_is_counted(threads: Threads, text: str) -> None:
    threads.set(main=0.0)
    (threads.folder / "self" / "task" / "main" / "schedstat").write_text(text)
    threads.wait.look()
    assert threads.share_after(2.0) == 1.0


def test_share_is_one_where_there_is_no_such_folder(tmp_path: Path) -> None:
    now = iter([0.0, 5.0])
    wait = ProcessorWait(tmp_path / "none", lambda: next(now))
    wait.look()
    wait.look()
    assert wait.share() == 1.0


BESIDE_ANOTHER = """
import os, time
from probe.threads.processor_wait import ProcessorWait

os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])
started = os.getpid()
if os.fork() == 0:
    while os.getppid() == started:
        pass
    os._exit(0)
wait = ProcessorWait()
wait.look()
began = time.process_time()
while time.process_time() - began < 1.0:
    pass
wait.look()
print(wait.share())
"""


@pytest.mark.skipif(not Path("/proc/self/schedstat").exists(), reason="only Linux counts how threads wait")
def test_share_of_a_program_beside_another_one_on_its_processor_is_about_half() -> None:
    done = subprocess.run([sys.executable, "-c", BESIDE_ANOTHER], capture_output=True, text=True, timeout=90)
    assert done.stderr == ""
    assert float(done.stdout) < 0.67
