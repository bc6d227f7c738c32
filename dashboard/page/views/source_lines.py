"""Source code of a stack frame as coloured lines: plain data that the event panel and the export draw.

Pure text functions: no file is opened, the training process captured the source. Called by `event_panel.py`
and by `export/`, on any thread.
"""

from __future__ import annotations

import keyword
import re
from dataclasses import dataclass
from typing import Final

from probe.wire import StackFrame
from probe.wire.libraries import is_installed_there

_TOKENS: Final = re.compile(
    r"(?P<comment>\#[^\n]*)"
    r"|(?P<string>\b[rbfuRBFU]{1,2}(?=['\"])|\"\"\"[\s\S]*?(?:\"\"\"|\Z)|'''[\s\S]*?(?:'''|\Z)"
    r"|\"(?:\\.|[^\"\\\n])*\"?|'(?:\\.|[^'\\\n])*'?)"
    r"|(?P<number>\b\d[\w.]*)"
    rf"|(?P<keyword>\b(?:{'|'.join(keyword.kwlist)})\b)"
    r"|(?P<name>\w+)"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    """A piece of one line; `kind` is comment, string, number, keyword or empty for everything else."""

    kind: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceLine:
    """One line of source with its number in the file."""

    number: int
    tokens: tuple[Token, ...]
    is_current: bool
    """The line that the frame was executing."""


def is_library(frame: StackFrame) -> bool:
    """True for installed packages, the standard library and frozen modules: not the user's own code."""
    return is_installed_there(frame.file)


def short_path(file: str) -> str:
    """The last two parts of a path, enough to recognise it; the whole path stands beside it on hover."""
    parts = re.split(r"[/\\]", file)
    return file if len(parts) < 3 or not parts[-2] else "/".join(parts[-2:])


def current_line(frame: StackFrame) -> str:
    """The line that the frame was executing, without its indentation; empty when it could not be read."""
    lines, number = frame.code.split("\n"), frame.line - frame.code_first_line
    return lines[number].strip() if 0 <= number < len(lines) else ""


def source_lines(frame: StackFrame) -> tuple[SourceLine, ...]:
    """Split the frame's source into lines of tokens; empty when the source could not be read."""
    if not frame.code:
        return ()
    rows: list[list[Token]] = [[]]
    for token in _tokens(frame.code.rstrip("\n")):
        first, *rest = token.text.split("\n")
        rows[-1].append(Token(kind=token.kind, text=first))
        rows.extend([Token(kind=token.kind, text=text)] for text in rest)
    return tuple(
        SourceLine(
            number=number,
            tokens=tuple(token for token in row if token.text),
            is_current=number == frame.line,
        )
        for number, row in enumerate(rows, start=frame.code_first_line)
    )


def _tokens(code: str) -> list[Token]:
    """Cut code into tokens. A snippet may start inside a string: then colours are off, text never is."""
    tokens: list[Token] = []
    end = 0
    for match in _TOKENS.finditer(code):
        kind = "" if match.lastgroup in (None, "name") else str(match.lastgroup)
        if match.start() > end:
            tokens.append(Token(kind="", text=code[end : match.start()]))
        tokens.append(Token(kind=kind, text=match.group()))
        end = match.end()
    return [*tokens, Token(kind="", text=code[end:])]
