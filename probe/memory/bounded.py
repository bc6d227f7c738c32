"""Whether a script itself bounds a container, or asks it as one asks a cache.

Used when a container of plain objects has grown much. Goes by the name and the text of the file that
feeds it: reads, runs nothing.
"""

from __future__ import annotations

import linecache
import re

_LINES_AT_MOST = 20_000


def is_bounded(name: str, file: str) -> bool:
    """Whether a file takes things out of what is called `name`, or compares its length.

    Args:
        name: last part of a variable or attribute, such as ``cache`` of ``self.cache``.
        file: source file in which it grows.
    """
    own = _name_in(name)
    length = rf"len\(\s*{own}\s*\)"
    sign = re.compile(
        rf"(?<![\w.]){own}\.(?:pop|popleft|popitem|clear)\("
        rf"|\bdel\s+{own}\["
        rf"|{length}\s*(?:[<>]|==|!=)|(?:[<>]|[<>=!]=)\s*{length}"
    )
    return _is_in(file, name, sign)


def is_asked(name: str, file: str) -> bool:
    """Whether a file asks what is called `name` for what it holds: a cache, or a memo of everything.

    Args:
        name: as above.
        file: source file in which it grows.
    """
    own = _name_in(name)
    sign = re.compile(
        rf"(?<![\w.]){own}\.get\("
        rf"|^(?!\s*(?:async\s+)?for\b)(?!.*\bfor\b.*\bin\s+{own}).*\bin\s+{own}(?!\s*[.(])"
    )
    return _is_in(file, name, sign)


def _name_in(name: str) -> str:
    return rf"(?:\w+\.)*{re.escape(name)}\b(?:\[[^\]]*\])?"


def _is_in(file: str, name: str, sign: re.Pattern[str]) -> bool:
    lines = linecache.getlines(file)
    return len(lines) <= _LINES_AT_MOST and any(name in line and sign.search(line) for line in lines)
