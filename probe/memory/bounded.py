"""Whether a script itself bounds a container: a cache that it asks, a buffer that is full once.

Used when a container of plain objects has grown much. Goes by the name and the text of the file that
feeds it: reads, runs nothing.
"""

from __future__ import annotations

import linecache
import re

_LINES_AT_MOST = 20_000


def is_bounded(name: str, file: str) -> bool:
    """Whether a file takes things out of what is called `name`, asks whether something is in it, or compares
    its length.

    Args:
        name: last part of a variable or attribute, such as ``cache`` of ``self.cache``.
        file: source file in which it grows.
    """
    own = rf"(?:\w+\.)*{re.escape(name)}\b(?:\[[^\]]*\])?"
    length = rf"len\(\s*{own}\s*\)"
    sign = re.compile(
        rf"(?<![\w.]){own}\.(?:pop|popleft|popitem|clear|get)\("
        rf"|\bdel\s+{own}\["
        rf"|^(?!\s*(?:async\s+)?for\b)(?!.*\bfor\b.*\bin\s+{own}).*\bin\s+{own}(?!\s*[.(])"
        rf"|{length}\s*(?:[<>]|==|!=)|(?:[<>]|[<>=!]=)\s*{length}"
    )
    lines = linecache.getlines(file)
    return len(lines) <= _LINES_AT_MOST and any(name in line and sign.search(line) for line in lines)
