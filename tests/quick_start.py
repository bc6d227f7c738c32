"""Programs that tests start import torch in three quarters of the time.

While torch is imported, nothing of what it makes can go, and collections look at all of it a dozen times;
when the program ends, the interpreter looks three times more. Here it is set aside, as in a program that is
forked from one that has torch. What the script makes is collected as ever.

`make` puts this file into the environment; `conftest.py` has each Python that a test starts import it.
"""

import gc
import sys


def _set_aside(phase: str, _: object) -> None:
    torch = sys.modules.get("torch")
    if phase == "start" and torch is not None:
        gc.freeze()
        if not getattr(torch.__spec__, "_initializing", False):
            gc.callbacks.remove(_set_aside)


gc.callbacks.append(_set_aside)
