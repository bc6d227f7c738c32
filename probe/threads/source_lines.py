"""The source round a line, as an event carries it: the server opens no source file. No torch.

Used by the stacks of `forensics/` and, for processes that cannot speak for themselves, by the helper.
"""

from __future__ import annotations

import linecache
from typing import Final

from ..wire import StackFrame
from .notebook_cells import shown_file

CONTEXT_LINES: Final = 7
"""Source lines shown on either side of a frame's own line."""
_MAX_TEXT: Final = 4096
_MAX_CODE: Final = 65536


def stack_frame(file: str, line: int, function: str) -> StackFrame:
    """Make the frame with its source; texts are cut to the wire's limits."""
    source, first = _source_around(file, line)
    return StackFrame(
        file=_clean(shown_file(file), _MAX_TEXT),
        line=line,
        function=_clean(function, _MAX_TEXT),
        code=source,
        code_first_line=first,
    )


def _source_around(file: str, line: int) -> tuple[str, int]:
    """Return the lines round `line` and the number of the first; ("", 0) where there is no source."""
    lines = linecache.getlines(file)
    if not 0 < line <= len(lines):
        return "", 0
    first = max(1, line - CONTEXT_LINES)
    source = "".join(lines[first - 1 : line + CONTEXT_LINES]).removesuffix("\n")
    if len(source) > _MAX_CODE:
        # A line of minified code: the line itself, cut, is all that can be shown.
        first, source = line, lines[line - 1].rstrip("\n")
    return _clean(source, _MAX_CODE), first


def _clean(text: str, limit: int) -> str:
    """Cut to the wire's limit; lone surrogates (odd file names) become question marks."""
    return text[:limit].encode("utf-8", "replace").decode("utf-8")
