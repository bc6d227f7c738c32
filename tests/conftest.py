"""What every test shares: private folders, a browser, and the proof that nothing of ours is left behind."""

import contextlib
import functools
import gc
import getpass
import importlib.metadata
import os
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import clickhouse_server
import hypothesis
import psutil
import pytest
import zookeeper_server
from capability_table import ROWS_FILE, CapabilityTable, read_rows
from clickhouse_server import ClickHouseServer
from cpu_table import CpuTable
from forked_scripts import TORCH, ForkedScripts
from zookeeper_server import ZooKeeper

# Before torch is loaded, and for all programs that tests start: on a busy machine torch's threads spin for
# each other. A test that is about several threads says how many.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Inductor asks the C++ compiler for less where it may not use vectors: those are not our subject.
os.environ.setdefault("TORCHINDUCTOR_VEC_ISA_OK", "0")
# Otherwise each worker would compile all tests again, and each of a hundred programs all of our modules.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
os.environ["TESTS_START_QUICKLY"] = "1"  # see quick_start.py; a test of the collector sets it to ""
# What is imported to collect the tests stays.
gc.disable()
# Nothing that the user has set reaches a test, nor what a fixture of a whole file starts.
for name in [name for name in os.environ if name.startswith("NANSCOPE_")]:
    del os.environ[name]
# How long an example takes says something of the machine, and nothing of the code.
hypothesis.settings.register_profile(
    "any machine", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("any machine")
# Each session asks what is installed, of a hundred packages' files, and while tests run that does not change.
importlib.metadata.version = functools.cache(importlib.metadata.version)
importlib.metadata.entry_points = functools.cache(importlib.metadata.entry_points)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--cpu-table", type=Path, help="write the CPU seconds of each test file to this file")
    parser.addoption(
        "--page-engine",
        choices=["duckdb", "clickhouse"],
        default="duckdb",
        help="the store of page tests that do not name one",
    )
    parser.addoption(
        "--store-engine",
        choices=["replicas"],
        help="the one store of tests that run with each: two servers with the same rows (make replicas)",
    )
    parser.addoption(
        "--capabilities", action="store_true", help="run the tests of docs/capabilities.md, count rows"
    )


def pytest_configure(config: pytest.Config) -> None:
    if "TMPDIR" not in os.environ and has_room(IN_MEMORY):
        config.add_cleanup(keep_in_memory())
    if path := config.getoption("--cpu-table"):
        config.pluginmanager.register(CpuTable(path))
    if config.getoption("--capabilities"):
        config.pluginmanager.register(CapabilityTable(read_rows(ROWS_FILE.read_text())))


IN_MEMORY = Path("/dev/shm")
ENOUGH_BYTES = 4 << 30
"""A run of all tests on two workers takes less than a fourth of it."""


def keep_in_memory() -> Callable[[], object]:
    """Have temporary files of all tests there, of workers too; return what ends that.

    On a disk that others use too, each commit of a store and each removed file waits for it.
    """
    # Torch keeps from one run to the next what it has compiled.
    kept = Path(tempfile.gettempdir()) / f"torchinductor_{getpass.getuser()}"
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(kept))
    os.environ["PYTEST_DEBUG_TEMPROOT"] = str(IN_MEMORY)  # pytest removes what no failed test has left
    folder = os.environ["TMPDIR"] = tempfile.tempdir = tempfile.mkdtemp(prefix="tests-", dir=IN_MEMORY)
    return functools.partial(shutil.rmtree, folder, ignore_errors=True)


def has_room(folder: Path) -> bool:
    """Whether tests can have their folders there; many a container has 64 MB."""
    is_place = folder.is_dir() and os.access(folder, os.W_OK)
    return is_place and min(shutil.disk_usage(folder).free, psutil.virtual_memory().available) >= ENOUGH_BYTES


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what only `make faults` runs; take files with slow tests first.

    Of several workers none is to be left with a long one at the end.
    """
    marks = {"slow", "browser"}
    slow = {item.path for item in items if marks & {mark.name for mark in item.iter_markers()}}
    items.sort(key=lambda item: item.path not in slow)
    if "faults" not in config.option.markexpr:
        long = [item for item in items if item.get_closest_marker("faults")]
        config.hook.pytest_deselected(items=long)
        items[:] = [item for item in items if item not in set(long)]


def pytest_collection_finish() -> None:
    gc.enable()


@pytest.fixture(autouse=True)
def private_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test reads or writes the user's own spool or state."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("NANSCOPE_SPOOL", str(tmp_path / "spool"))
    monkeypatch.setenv("NANSCOPE_CONNECT", "")


@pytest.fixture(autouse=True, scope="session")
def ignored_signals_end_here() -> None:
    """What our parent ignores (`nohup`, a job in the background) is not ignored by programs that tests start.

    A handler that does nothing keeps this process as it was asked to be; a program it starts has the default.
    """
    by_python = {signal.SIGPIPE, signal.SIGXFSZ}
    for number in signal.valid_signals() - by_python:
        if signal.getsignal(number) is signal.SIG_IGN:
            # With SIGCHLD ignored, the kernel tells nobody how a child has ended.
            signal.signal(number, signal.SIG_DFL if number == signal.SIGCHLD else lambda *_: None)


@pytest.fixture(autouse=True, scope="module")
def quick_collections() -> None:
    """What is there by now stays: a collection in a test need not walk torch and its trainers every time."""
    gc.collect()
    gc.freeze()


def pytest_unconfigure() -> None:
    """Libraries complain about what is never collected."""
    gc.unfreeze()


@pytest.fixture(autouse=True)
def searches_of_its_own() -> None:
    """Each test may search all objects as a process that has just begun may."""
    if (module := sys.modules.get("probe.compat.all_objects")) is not None:
        for walks in (module.training, module.faults):
            walks.reset()


@pytest.fixture(autouse=True)
def nothing_left_behind() -> Iterator[None]:
    """After every test: no session, hook, thread or child process that was not there before."""
    threads, children = set(threading.enumerate()), _descendants()
    yield
    _assert_no_torch_hooks()
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline and (new_threads(threads) or new_children(children)):
        time.sleep(0.02)
    assert not new_threads(threads)
    assert not new_children(children)


def new_threads(before: set[threading.Thread]) -> list[str]:
    """Names of our threads that appeared since; Playwright and pools of libraries keep their own.

    A server of a whole module may begin another of the threads that draw for its pages, which end with it.
    """
    has_server = any(thread.name == "nanscope-page" and thread.is_alive() for thread in before)
    new = [thread.name for thread in threading.enumerate() if thread not in before]
    ours = [name for name in new if name.startswith("nanscope")]
    return [name for name in ours if not (has_server and name.startswith("nanscope-live_"))]


def new_children(before: set[int]) -> set[int]:
    """Our processes that were started since, by this one or by a child of it."""
    return {pid for pid in _descendants() - before if _is_ours(pid)}


def _descendants() -> set[int]:
    """Process ids as the kernel lists them by thread: for them psutil reads all processes of the machine."""
    if not Path(f"/proc/self/task/{os.getpid()}/children").exists():  # not every kernel is built with it
        return {child.pid for child in psutil.Process().children(recursive=True)}
    found: set[int] = set()
    asked = [os.getpid()]
    while asked:
        children = list(_children(asked.pop()))
        found.update(children)
        asked += children
    return found


def _children(pid: int) -> Iterator[int]:
    tasks = f"/proc/{pid}/task"
    # A process or a thread may end in the meantime.
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        for task in os.listdir(tasks):
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                with open(f"{tasks}/{task}/children") as listed:
                    yield from map(int, listed.read().split())


def _is_ours(pid: int) -> bool:
    """Not a process that has ended in the meantime, nor one of the browser's, which ends in its own time.

    Nor a server of the whole worker.
    """
    if pid in clickhouse_server.shared_pids:
        return False
    try:
        process = psutil.Process(pid)
        with process.oneshot():
            name, command = process.name(), " ".join(process.cmdline())
            has_ended = process.status() == psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False
    return not (has_ended or name.startswith("chrom") or "playwright" in command or "chromium" in command)


def _assert_no_torch_hooks() -> None:
    if "probe.session" not in sys.modules:
        return
    import torch

    from probe import session
    from probe.attach import root_calls

    for running in list(session._sessions.values()):
        running.close()
        pytest.fail("the test left a session running")
    assert torch.autograd.backward.__code__.co_filename.endswith("torch/autograd/__init__.py")
    assert root_calls.root_calls.is_idle
    assert "probe" not in torch.utils.data.DataLoader.__iter__.__code__.co_filename
    assert torch.nn.Module.__call__ is torch.nn.Module._wrapped_call_impl
    assert sys.excepthook is sys.__excepthook__ or "probe" not in getattr(sys.excepthook, "__module__", "")


@pytest.fixture
def spool(tmp_path: Path) -> Path:
    """Where `private_folders` has the probe write; not there before a run is."""
    return tmp_path / "spool"


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Sums in one order, and no threads that wait for each other on a busy machine."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def nothing_switched_off(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """What a guard of ours catches would otherwise pass unseen."""
    yield
    assert "switched off" not in caplog.text


@pytest.fixture(scope="session")
def forked() -> Iterator[ForkedScripts]:
    """A process that has torch and the probe, to fork programs from: one for all the files of a worker."""
    with ForkedScripts(*TORCH, "probe.session") as scripts:
        yield scripts


@pytest.fixture(scope="session")
def clickhouse(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClickHouseServer]:
    """A real ClickHouse for all tests of a worker, each with its own database; without one they skip."""
    if problem := clickhouse_server.what_is_missing():
        pytest.skip(problem)
    with _shared(ClickHouseServer(tmp_path_factory.mktemp("clickhouse"))) as server:
        yield server


@pytest.fixture(scope="session")
def second_clickhouse(
    clickhouse: ClickHouseServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ClickHouseServer]:
    """Another one, with the same user and password, for stores on two servers."""
    folder = tmp_path_factory.mktemp("clickhouse")
    with _shared(ClickHouseServer(folder, password=clickhouse.password)) as server:
        yield server


@pytest.fixture(scope="session")
def replica_servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[ClickHouseServer]]:
    """Two with the same rows, and their ZooKeeper, for all tests of a worker."""
    if problem := clickhouse_server.what_is_missing() or zookeeper_server.what_is_missing():
        pytest.skip(problem)
    folder = tmp_path_factory.mktemp("replicas")
    keeper = ZooKeeper(folder / "keeper")
    keeper.start()
    clickhouse_server.shared_pids.add(keeper.pid)
    with contextlib.ExitStack() as stack:
        one, two = (ClickHouseServer(folder / name, password="hush", keeper=keeper.port) for name in "ab")
        yield [stack.enter_context(_shared(each)) for each in (one, two)]
    clickhouse_server.shared_pids.discard(keeper.pid)
    keeper.stop()


@contextlib.contextmanager
def _shared(server: ClickHouseServer) -> Iterator[ClickHouseServer]:
    server.start()
    clickhouse_server.shared_pids.add(server.pid)
    yield server
    clickhouse_server.shared_pids.discard(server.pid)
    server.stop()


@pytest.fixture(scope="session")
def chromium_path() -> str:
    """Debian's Chromium; without one the browser tests skip, in CI they fail."""
    path = shutil.which("chromium-headless-shell") or shutil.which("chromium")
    if path is None:
        problem = "Chromium is missing: apt-get install chromium-headless-shell"
        if os.environ.get("CI"):
            pytest.fail(problem)
        pytest.skip(problem)
    return path
