"""What a cell of a notebook is called: IPython compiles it under the name of a file that nobody has seen."""

from __future__ import annotations

import sys
from pathlib import Path


def shown_file(file: str) -> str:
    """Return ``In[3]`` for a cell that IPython has executed, any other file as it is."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    # Not in IPython 7: there the file's own name stays.
    name_of = getattr(getattr(shell, "compile", None), "format_code_name", None)
    named = None if name_of is None else name_of(file)
    return file if named is None else str(named[1])


def shown_name(file: str) -> str:
    """Return ``In[3]`` for a cell, else the file's name without its folder."""
    return Path(shown_file(file)).name
