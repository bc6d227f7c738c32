"""The helper process is invisible to the training script, and there is one at a time."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from delivery_processes import RUN, Site, wait_until

from probe.delivery.helper.helper import lock_owner, start_helper
from probe.delivery.journal.journal_reader import read_stream
from probe.wire import HostSample, decode_record


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    site = Site(tmp_path, NANSCOPE_LINGER_S="1")
    yield site
    site.close()


@pytest.fixture
def helper(site: Site) -> psutil.Process:
    """The helper, at work, of a trainer that runs until it is killed."""
    site.start_trainer()
    wait_until(lambda: bool(host_samples(site)), "no helper came")
    return psutil.Process(site.helper_pid())


def test_helper_has_its_own_session_and_no_descriptor_of_the_script(
    site: Site, helper: psutil.Process
) -> None:
    assert os.getsid(helper.pid) != os.getsid(site.trainer.pid)
    fds = {path.name: os.readlink(path) for path in Path(f"/proc/{helper.pid}/fd").iterdir()}
    assert [fds[number] for number in ("0", "1", "2")] == ["/dev/null"] * 3
    allowed = (str(site.spool), "/dev/null", "socket:", "anon_inode:", "pipe:", "/proc")
    assert not [target for target in fds.values() if not target.startswith(allowed)]


def test_helper_is_no_child_of_the_training_process(site: Site, helper: psutil.Process) -> None:
    assert psutil.Process(site.trainer.pid).children(recursive=True) == []
    assert site.trainer.pid not in [parent.pid for parent in helper.parents()]


def test_helper_does_not_keep_a_waiting_parent_waiting(site: Site) -> None:
    """A parent that reads the script's output to its end must get it when the script ends."""
    script = [sys.executable, str(Path(__file__).with_name("delivery_trainer.py"))]
    site.environment["NANSCOPE_LINGER_S"] = "30"
    process = subprocess.Popen(
        [*script, str(site.spool), RUN, "0", "0", "400", str(site.confirmed)],
        env=site.environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    output, _ = process.communicate(timeout=20)
    assert (output, process.returncode) == (b"", 0)
    assert site.helper_pid() is not None


def test_helper_that_is_killed_is_replaced(site: Site, helper: psutil.Process) -> None:
    work = helper.cmdline()
    os.kill(helper.pid, signal.SIGKILL)
    wait_until(lambda: site.helper_pid() not in (None, helper.pid), "no new helper came")
    assert psutil.Process(site.helper_pid()).cmdline() == work


def test_helper_second_one_waits_for_the_first(site: Site, helper: psutil.Process) -> None:
    assert start_helper(site.spool / RUN, None) is None
    waiting = wait_for_helpers(site, 2)
    assert site.helper_pid() == helper.pid
    os.kill(helper.pid, signal.SIGKILL)
    wait_until(lambda: site.helper_pid() in waiting - {helper.pid}, "the waiting helper did not take over")


def wait_for_helpers(site: Site, count: int) -> set[int]:
    """Wait until this many helper processes work for the site's run."""
    found: set[int] = set()

    def enough() -> bool:
        found.clear()
        for process in psutil.process_iter(["cmdline"]):
            line = process.info["cmdline"] or []
            if str(site.spool / RUN) in line and any("helper_entry" in part for part in line):
                found.add(process.pid)
        return len(found) >= count

    wait_until(enough, f"fewer than {count} helpers")
    return found


def test_helper_ignores_files_that_are_called_like_its_modules(site: Site, tmp_path: Path) -> None:
    research = tmp_path / "research"
    research.mkdir()
    for name in ("probe.py", "shipper.py", "wire.py"):
        (research / name).write_text("raise SystemExit('the wrong module')")
    site.environment["PYTHONPATH"] = str(research)
    site.start_trainer(cwd=research)
    wait_until(lambda: bool(host_samples(site)), "the helper wrote nothing")
    assert host_samples(site)[0].state == "running"


def host_samples(site: Site) -> list[HostSample]:
    samples = []
    for folder in (site.spool / RUN).glob("host-*"):
        records = [decode_record(data) for _, data in read_stream(folder, "host")]
        samples += [record for record in records if isinstance(record, HostSample)]
    return samples


def test_helper_without_a_dashboard_leaves_soon_after_the_last_trainer(site: Site) -> None:
    trainer = site.start_trainer(steps=100)
    assert trainer.wait(30) == 0, site.logs()
    wait_until(lambda: site.helper_pid() is not None or bool(host_samples(site)), "no helper came")
    site.wait_for_helper_to_leave(30)
    assert host_samples(site)[-1].state == "ended"


def test_helper_reports_a_killed_trainer(site: Site, helper: psutil.Process) -> None:
    site.trainer.kill()
    site.trainer.wait(30)
    wait_until(lambda: host_samples(site)[-1].state == "killed", "nobody noticed")
    before = len(host_samples(site))
    site.wait_for_helper_to_leave(30)
    assert len(host_samples(site)) == before


def test_helper_is_not_started_when_nothing_is_to_be_shipped(site: Site) -> None:
    site.environment["NANSCOPE_CONNECT"] = ""
    trainer = site.start_trainer(steps=400)
    assert trainer.wait(30) == 0, site.logs()
    assert not list((site.spool / RUN).glob("host-*"))


def test_lock_owner_of_a_missing_or_free_lock_is_none(tmp_path: Path) -> None:
    assert lock_owner(tmp_path / "helper.lock") is None
    (tmp_path / "helper.lock").touch()
    assert lock_owner(tmp_path / "helper.lock") is None


FORKING_SCRIPT = """
import os, sys, time
sys.path.insert(0, sys.argv[1])
from pathlib import Path
from probe.delivery.recorder.recorder import Recorder
from probe.wire import RunStart
start = RunStart(run="run", rank=0, incarnation=1, pid=os.getpid(), time=time.time())
recorder = Recorder(Path(sys.argv[2]), start, connect=None)
time.sleep(1.5)
try:
    print(os.waitpid(-1, os.WNOHANG))
except ChildProcessError:
    print("no children")
recorder.close(outcome="finished", last_step=0)
"""


def test_helper_is_not_seen_by_a_script_that_waits_for_its_children(site: Site) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FORKING_SCRIPT, str(Path(__file__).parents[2]), str(site.spool)],
        env=site.environment, capture_output=True, text=True, timeout=30, check=True,
    )  # fmt: skip
    assert done.stdout == "no children\n"
