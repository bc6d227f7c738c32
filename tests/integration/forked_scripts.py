"""Runs scripts, each in a process of its own that has torch already: it is forked from one that imported it.

    with ForkedScripts(*TORCH) as scripts:
        code, out, err = scripts.start(["training.py", "--steps", "3"], folder).finish()
        code, out, err = scripts.launch(["--quiet", "training.py", "--steps", "3"], folder).finish()

The second does what `dashboard run --quiet training.py --steps 3` does, from the command's own `main` on.
Three of the four seconds of a short training are imports. Where the subject is how Python starts or how torch
is imported, start Python itself.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import importlib.util
import itertools
import json
import os
import runpy
import signal
import subprocess
import sys
import time
import types
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

TORCH = ("torch._dynamo", "torch.distributed", "torch.utils.data")
"""What scripts that train import, and the first optimizer."""


class ForkedScripts:
    """The process that has modules imported and forks for each script.

    Args:
        modules: what it imports.
    """

    def __init__(self, *modules: str) -> None:
        self._modules = modules

    def __enter__(self) -> ForkedScripts:
        self._process = subprocess.Popen(
            [sys.executable, __file__, *self._modules],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._folder = TemporaryDirectory()
        self._names = map(str, itertools.count())
        """Of scripts: a process id comes again within one run of the tests."""
        return self

    def __exit__(self, *_: object) -> None:
        """Let it end, which it does as soon as nobody can ask any more."""
        self._process.communicate(timeout=60)
        self._folder.cleanup()

    def start(
        self, command: Sequence[str], folder: Path, environment: Mapping[str, str] | None = None
    ) -> ForkedScript:
        """Start what `python` with this command would, in a folder.

        `environment` goes on top of this process's own.
        """
        return self._start(command, folder, environment or {}, is_launched=False)

    def launch(
        self, command: Sequence[str], folder: Path, environment: Mapping[str, str] | None = None
    ) -> ForkedScript:
        """Start what `dashboard run` with this command, its own options first, becomes."""
        return self._start(command, folder, environment or {}, is_launched=True)

    def _start(
        self, command: Sequence[str], folder: Path, environment: Mapping[str, str], *, is_launched: bool
    ) -> ForkedScript:
        values = {**os.environ, "OMP_NUM_THREADS": "1", **environment}
        places = {"folder": str(folder), "environment": values}
        written = Path(self._folder.name, next(self._names))
        request = {"command": command, **places, "is_launched": is_launched, "written": str(written)}
        return ForkedScript(self, self.ask(request), written)

    def ask(self, request: dict[str, Any]) -> Any:
        """Send one request, wait for its answer."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        assert answer, "the process that forks has ended"
        return json.loads(answer)


@dataclass
class ForkedScript:
    """A script that runs or has ended; as much of `subprocess.Popen` as tests need."""

    scripts: ForkedScripts
    pid: int
    written: Path
    """Begin of the paths of what it writes."""
    code: int | None = None

    def wait(self, timeout_s: float = 120.0) -> int:
        """Return the exit code, that of a signal below zero."""
        deadline = time.monotonic() + timeout_s
        while self.poll() is None:
            if time.monotonic() > deadline:
                self.kill()
                raise AssertionError(f"the script does not end: {self._read('err')}")
            time.sleep(0.02)
        assert self.code is not None
        return self.code

    def poll(self) -> int | None:
        """Return the exit code, None while the script runs."""
        if self.code is None:
            self.code = self.scripts.ask({"ended": self.pid})
        return self.code

    def finish(self, timeout_s: float = 120.0) -> tuple[int, str, str]:
        """Wait; return the exit code and what was written to stdout and stderr."""
        return self.wait(timeout_s), self._read("out"), self._read("err")

    def said(self) -> str:
        """What was written to stdout and stderr until now."""
        return self._read("out") + self._read("err")

    def _read(self, name: str) -> str:
        file = self.written.with_suffix(f".{name}")
        return file.read_text() if file.exists() else ""

    def first_line(self, timeout_s: float = 60.0) -> str:
        """Wait for the first line of stdout; an empty one if the script ends without."""
        deadline = time.monotonic() + timeout_s
        while "\n" not in (out := self._read("out")) and self.poll() is None:
            assert time.monotonic() < deadline, "the script prints nothing"
            time.sleep(0.02)
        return out.partition("\n")[0]

    def send_signal(self, number: int) -> None:
        """The process id is its own until it was waited for."""
        if self.code is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class Replaced(BaseException):
    """`os.execve` was called: of what was there before, only the process would have remained."""

    def __init__(self, command: list[str], environment: dict[str, str]) -> None:
        self.command, self.environment = command, environment


def become_script(
    command: list[str], folder: str, environment: dict[str, str], written: str, is_launched: bool = False
) -> None:
    """Be the process that `python *command` would be, or `dashboard run *command`, and run its script."""
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for number, name in ((1, "out"), (2, "err")):
        os.dup2(os.open(f"{written}.{name}", os.O_WRONLY | os.O_CREAT), number)
    os.chdir(folder)
    take_environment(environment)
    if is_launched:
        command = become_launched(command)
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    script = command[0]
    if script == "-m":
        sys.argv[:], sys.path[0] = command[1:], folder
        runpy._run_module_as_main(command[1])  # type: ignore[attr-defined]
    elif script == "-c":
        sys.argv[:], sys.path[0] = ["-c", *command[2:]], ""
        exec(compile(command[1], "<string>", "exec"), main.__dict__)  # noqa: S102  our own
    else:
        sys.argv[:], sys.path[0] = command, str(Path(script).resolve().parent)
        main.__file__ = script
        exec(compile(Path(script).read_bytes(), script, "exec"), main.__dict__)  # noqa: S102  our own


def take_environment(environment: dict[str, str]) -> None:
    os.environ.clear()
    os.environ.update(environment)
    paths = [path for path in environment.get("PYTHONPATH", "").split(os.pathsep) if path]
    sys.path[1:] = [*paths, *(path for path in sys.path[1:] if path not in paths)]


def become_launched(command: list[str]) -> list[str]:
    """Have `dashboard run` prepare the process, with torch imported already; return the script's own command.

    What the command has imported goes, as it does when it replaces its process.
    """
    from dashboard.cli import main

    execve, os.execve = os.execve, raise_replaced  # type: ignore[assignment]
    try:
        main(["run", *command])
        raise AssertionError("the command has not become the script")
    except Replaced as replaced:
        python, *options = replaced.command
        script = list(itertools.dropwhile(lambda option: option.startswith("-") and option != "-m", options))
        take_environment(replaced.environment)
    finally:
        os.execve = execve
    assert python == sys.executable
    for name in [name for name in sys.modules if name.partition(".")[0] in ("probe", "dashboard")]:
        del sys.modules[name]
    begin_with_torch_imported()
    return script


def raise_replaced(file: str, command: list[str], environment: dict[str, str]) -> None:
    raise Replaced(command, environment)


def begin_with_torch_imported() -> None:
    """Do what Python and its first `import torch` do below `dashboard run`.

    Python imports the first `sitecustomize` of PYTHONPATH; ours waits for torch, by a finder.
    """
    if "NANSCOPE_LAUNCH" not in os.environ:
        return
    site = os.environ["PYTHONPATH"].partition(os.pathsep)[0]
    sys.path.insert(1, site)
    name = "sitecustomize"
    spec = importlib.util.spec_from_file_location(name, f"{site}/{name}.py")
    assert spec is not None and spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    with contextlib.suppress(ImportError):  # there is no other, as Python expects
        spec.loader.exec_module(module)
    assert isinstance(sys.meta_path[0], module._WaitForTorch)
    del sys.meta_path[0]
    module._begin()


def serve() -> dict[str, Any] | None:
    """Answer requests; returns what to run in each new process, and nothing in the first one at the end."""
    for line in iter(sys.stdin.readline, ""):
        request: dict[str, Any] = json.loads(line)
        answer: int | None
        if "ended" in request:
            child, status = os.waitpid(request["ended"], os.WNOHANG)
            answer = os.waitstatus_to_exitcode(status) if child else None
        else:
            answer = os.fork()
            if answer == 0:
                return request
        print(json.dumps(answer), flush=True)
    return None


def leave_alone(modules: dict[str, types.ModuleType]) -> None:
    """At the end of a script, do not take apart what it has not imported: all of that memory would be copied.

    What is not in `sys.modules` Python lets be. After it would come the destructors of torch's libraries.
    """
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(modules))
    sys.modules.update(dict.fromkeys(modules))  # type: ignore[arg-type]
    libc = ctypes.CDLL(None)
    libc.on_exit(libc._exit, None)


if __name__ == "__main__":
    imported: dict[str, types.ModuleType] = {}
    atexit.register(leave_alone, imported)  # last of all, being the first
    for module in sys.argv[1:]:
        importlib.import_module(module)
    ours = ("probe", "dashboard", "__main__", "sys", "builtins")
    imported |= {name: module for name, module in sys.modules.items() if name.partition(".")[0] not in ours}
    gc.freeze()  # or each of the scripts would look at all of it once more when it ends
    asked = serve()
    if asked is not None:
        become_script(**asked)
