"""What the recorder's thread leaves for the helper once a second: that it runs, and where training was.

Written inside the training process by `LifeSignWriter`, read outside by `read_life_sign`. While C code holds
Python's lock, or the process is stopped, no thread of Python runs and the sign stays as it was. On a signal
that nobody else uses faulthandler then writes all stacks into a file, without that lock.
"""

from __future__ import annotations

import ctypes
import faulthandler
import os
import re
import signal
from pathlib import Path
from typing import Final

import msgspec

from ..guard import let_pass, suppressed
from ..own_files import OwnFile
from ..wire.ordinary_files import ordinary_file, read_ordinary
from .whereabouts import Line

_SIGN: Final = "life.json"
_STACKS: Final = "stacks.txt"
_MOST_SIGN_BYTES: Final = 1024**2
_MOST_STACK_BYTES: Final = 4 * 1024**2
"""Read of what one signal has written."""
_THREAD: Final = re.compile(r"^(?:Current thread|Thread) 0x([0-9a-f]+)")
_FRAME: Final = re.compile(r'^  File "(.*)", line (\d+) in (.*)$')


class LifeSign(msgspec.Struct, frozen=True, kw_only=True):
    """The newest sign of life of one incarnation."""

    count: int
    """Goes up with every sign."""
    step: int | None
    """Newest finished step."""
    is_training: bool
    """In the midst of it: past the first steps, and not evaluating."""
    limit_s: float
    """What is a hang in the midst of a step."""
    step_s: float
    """Median time of a step."""
    thread: int
    """Identifier of the thread that trains; 0 before the first backward."""
    recorder: int
    """The kernel's number of the recorder's thread."""
    signal: int
    """What has the process write its stacks; 0 where there is no free signal."""
    stacks: int = -1
    """The descriptor that they are written to."""
    mark: list[Line]
    """The training loop: a stack at the end of a backward."""


_decoder: Final = msgspec.json.Decoder(LifeSign)


class LifeSignWriter:
    """Writes the sign into a writer's folder, and keeps the file for the stacks.

    Args:
        folder: `SPOOL/<run>/<rank>-<incarnation>`.
        takes_signal: whether a free real-time signal may be taken for the stacks.
    """

    def __init__(self, folder: Path, *, takes_signal: bool) -> None:
        self._folder = folder
        self._file: OwnFile | None = None
        self._stacks: OwnFile | None = None
        self._registered = -1
        self._pid = os.getpid()
        self.signal = 0
        self._length = 0
        with suppressed(OSError):
            self._file = OwnFile(folder / _SIGN, os.O_CREAT | os.O_WRONLY)
            if takes_signal and (free := _free_signal()):
                self._stacks = OwnFile(folder / _STACKS, os.O_CREAT | os.O_WRONLY | os.O_APPEND)
                self.signal = free
                self._register(self._stacks)

    def find_stacks(self) -> int:
        """Return the descriptor that the stacks are written to, opened again if it was closed; else -1."""
        if not self.signal or self._stacks is None:
            return -1
        try:
            self._register(self._stacks)
        except OSError as error:
            let_pass(error)
            faulthandler.unregister(self.signal)
            self.signal, self._registered = 0, -1
        return self._registered

    def _register(self, stacks: OwnFile) -> None:
        if (descriptor := stacks.descriptor()) != self._registered:
            faulthandler.register(self.signal, file=descriptor, all_threads=True, chain=False)
            self._registered = descriptor

    def write(self, sign: LifeSign) -> None:
        """Replace the sign by a newer one; where that fails there is none from then on."""
        if self._file is None:
            return
        data = msgspec.json.encode(sign)
        padded = data.ljust(self._length)
        self._length = len(data)
        try:
            os.pwrite(self._file.descriptor(), padded, 0)
        except OSError as error:
            let_pass(error)
            # An old sign would say that nothing runs.
            self.close()

    def close(self) -> None:
        """Give the signal back and remove the files. Idempotent; nothing in a forked process."""
        if self._file is None or os.getpid() != self._pid:
            return
        if self.signal:
            faulthandler.unregister(self.signal)
        for file in (self._file, self._stacks):
            if file is not None:
                file.close()
        self._file = self._stacks = None
        for name in (_SIGN, _STACKS):
            with suppressed(OSError):
                (self._folder / name).unlink()


def read_life_sign(folder: Path) -> LifeSign | None:
    """Return the newest sign; None where there is none, or it is being written."""
    try:
        return _decoder.decode(read_ordinary(folder / _SIGN, _MOST_SIGN_BYTES))
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        let_pass(error)
        return None


def last_sign_at(folder: Path) -> float | None:
    """UNIX seconds of the newest sign; None where there is none."""
    try:
        return (folder / _SIGN).stat().st_mtime
    except OSError as error:
        let_pass(error)
        return None


def stacks_size(folder: Path) -> int:
    """Bytes of the stacks written so far."""
    try:
        return (folder / _STACKS).stat().st_size
    except OSError as error:
        let_pass(error)
        return 0


def read_stack(folder: Path, *, thread: int, after: int) -> list[Line]:
    """Return one thread's stack out of what faulthandler has written, outermost frame first.

    Args:
        folder: the writer's.
        thread: identifier of the thread.
        after: size of the file before.
    """
    try:
        with ordinary_file(folder / _STACKS) as descriptor:
            text = os.pread(descriptor, _MOST_STACK_BYTES, after).decode("utf-8", "replace")
    except OSError as error:
        let_pass(error)
        return []
    frames: list[Line] = []
    is_wanted = False
    for line in text.splitlines():
        if head := _THREAD.match(line):
            if frames:
                break
            is_wanted = int(head.group(1), 16) == thread
        elif is_wanted and (frame := _FRAME.match(line)):
            frames.append(Line(frame.group(1), int(frame.group(2)), frame.group(3)))
    return frames[::-1]


def _free_signal() -> int:
    """A real-time signal that nobody in this process handles, ignores or blocks; 0 where there is none."""
    used = 0
    with suppressed(OSError, ValueError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith(("SigBlk:", "SigIgn:", "SigCgt:")):
                used |= int(line.split()[1], 16)
        for number in range(signal.SIGRTMAX - 1, signal.SIGRTMIN, -1):
            if not used >> (number - 1) & 1 and signal.getsignal(number) == signal.SIG_DFL:
                return number
    return 0


def ask_for_stacks(pid: int, sign: LifeSign, folder: Path) -> bool:
    """Have a process write its stacks; False where it does not handle the signal, which would end it.

    False too where the script has closed the file for them: the number may be one of its own files by now.

    The recorder's thread gets the signal: in any other it could interrupt a system call of the script's.
    """
    try:
        target = os.stat(f"/proc/{pid}/fd/{sign.stacks}")  # noqa: PTH116 - what it is, not where it leads
        if not os.path.samestat(target, (folder / _STACKS).stat()):
            return False
        status = Path(f"/proc/{pid}/status").read_text()
        caught = next(int(line.split()[1], 16) for line in status.splitlines() if line.startswith("SigCgt:"))
        send = ctypes.CDLL(None).tgkill
    except (OSError, ValueError, StopIteration, AttributeError) as error:
        let_pass(error)
        return False
    return bool(caught >> (sign.signal - 1) & 1) and send(pid, sign.recorder, sign.signal) == 0
