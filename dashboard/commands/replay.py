"""`dashboard replay`: becomes the process that replays a bundle, for which torch is needed.

The model is built by the user's own code, so it runs where a script would: the current folder comes first.
"""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import probe

from ..errors import DashboardError

# A script's own `probe.py` must not be taken for ours: the folder is on the path for this import alone.
_REPLAY: Final = """
import sys
sys.path.insert(0, sys.argv[1])
import probe
del sys.path[0]
from probe.forensics.bundle.__main__ import main
sys.exit(main(sys.argv[2:]))
"""


def replay_bundle(bundle: Path, *, entry: str, as_json: bool) -> None:
    """Replace this process by the replay; does not return.

    Args:
        bundle: its folder.
        entry: ``module:function``, which builds the model.
        as_json: print one JSON object.

    Raises:
        DashboardError: there is no torch here.
    """
    if find_spec("torch") is None:
        raise DashboardError(
            "A replay runs the model with PyTorch, which is not installed here: pip install torch==2.13.0"
        )
    # What the entry's module imports or does must not be recorded as a run.
    environment = {**os.environ, "NANSCOPE_OFF": "1"}
    ours = str(Path(probe.__file__).parent.parent)
    options = ["--json"] if as_json else []
    sys.stdout.flush()
    # -P leaves the current folder out of the path; the command puts it there once it has its own imports.
    command = [sys.executable, "-P", "-c", _REPLAY, ours, str(bundle), "--entry", entry, *options]
    os.execve(sys.executable, command, environment)
