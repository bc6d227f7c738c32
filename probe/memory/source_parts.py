"""A source file in parts that parse by themselves: parsing takes 10 us a line, and cannot be interrupted.

Goes by indentation. Called by the search for the line that feeds a leak, on the training thread.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

_LONG: Final = 200
"""A class or function of more lines is split again."""
_GOES_ON: Final = re.compile(r"(else|elif|except|finally|case)\b|[)\]}#]")
"""What begins a line of the statement before it."""
_QUOTES: Final = re.compile("\"\"\"|'''")
_HEAD: Final = re.compile(r"\s*(?:async\s+def|def|class)\s+(\w+)")


@dataclass(slots=True)
class Part:
    """Some statements in a row."""

    lines: Sequence[str]
    """Of the whole file."""
    start: int
    """0-based, included."""
    end: int
    """0-based, not included."""
    function: str
    """Classes and functions round it, with dots between; "" outside of any."""
    first_line: int
    """Of the function round it, 1-based; 0 outside of any."""
    text: str = field(init=False)

    def __post_init__(self) -> None:
        self.text = "".join(self.lines[self.start : self.end])

    def holds(self, pattern: re.Pattern[str]) -> bool:
        """Whether a line matches."""
        return pattern.search(self.text) is not None

    def parse(self) -> ast.Module | None:
        """Return the statements with the line numbers of the file; None where it does not parse."""
        is_inner = self.text[:1].isspace()
        try:
            tree = ast.parse(f"if 1:\n{self.text}" if is_inner else self.text)
        except (SyntaxError, ValueError, RecursionError):
            return None
        ast.increment_lineno(tree, self.start - is_inner)
        return tree


def split_source(lines: Sequence[str]) -> Iterator[Part]:
    """Yield the parts of a file in order."""
    yield from _split(lines, 0, len(lines), "", 0)


def _split(lines: Sequence[str], start: int, end: int, function: str, first: int) -> Iterator[Part]:
    borders = [*_starts(lines, start, end), end]
    position = 0
    while position < len(borders) - 1:
        begin, stop = borders[position], borders[position + 1]
        position += 1
        while position < len(borders) - 1 and _ends_in_string(lines, begin, stop):
            position += 1
            stop = borders[position]
        body = _body(lines, begin, stop) if stop - begin > _LONG else None
        if body is not None:
            yield from _split(lines, body.start, stop, *body.inside(function, first, begin))
            continue
        yield Part(lines, begin, stop, function, first)


def _starts(lines: Sequence[str], start: int, end: int) -> Iterator[int]:
    """Where statements of the outermost indentation begin; a decorator begins its function."""
    indent: int | None = None
    is_decorated = False
    for number in range(start, end):
        line = lines[number]
        text = line.lstrip()
        if not text or text[0] == "#":
            continue
        depth = len(line) - len(text)
        indent = depth if indent is None else indent
        if depth != indent or _GOES_ON.match(text) or (number > start and lines[number - 1].endswith("\\\n")):
            continue
        if not is_decorated:
            yield number
        is_decorated = text[0] == "@" or (is_decorated and not _HEAD.match(text))


def _ends_in_string(lines: Sequence[str], begin: int, stop: int) -> bool:
    """Whether a line of a text over several lines was taken for the beginning of a statement."""
    is_open = ""
    for mark in _QUOTES.findall("".join(lines[begin:stop])):
        if is_open in ("", mark):
            is_open = "" if is_open else mark
    return bool(is_open)


@dataclass(frozen=True, slots=True)
class _Body:
    """What stands below the head of a long class or function."""

    start: int
    name: str
    is_class: bool

    def inside(self, function: str, first: int, begin: int) -> tuple[str, int]:
        """Return the qualified name and the first line that hold inside of it."""
        name = f"{function}.{self.name}" if function else self.name
        return name, first if self.is_class else begin + 1


def _body(lines: Sequence[str], begin: int, stop: int) -> _Body | None:
    head = next((number for number in range(begin, stop) if _HEAD.match(lines[number])), None)
    if head is None or (head > begin and not lines[begin].lstrip().startswith("@")):
        return None
    match = _HEAD.match(lines[head])
    assert match is not None
    for number in range(head, stop):
        if lines[number].partition("#")[0].rstrip().endswith(":"):
            return _Body(number + 1, match[1], lines[head].lstrip().startswith("class"))
    return None
