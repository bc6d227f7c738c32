"""How a session shows itself in a notebook. A base of `Probe`; loads nothing before it is asked."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ...delivery.recorder.recorder import Recorder


class NotebookCalls:
    """Methods of `Probe` that IPython looks for."""

    if TYPE_CHECKING:
        _recorder: Recorder | None

    _shown_folder: Path | None = None
    """`SPOOL/<run>`; also once the session is closed."""

    def _ipython_display_(self) -> None:
        """Show the run under the cell, and keep it up to date; IPython shows the static card elsewhere."""
        from .live_display import show_live

        if self._shown_folder is None or not show_live(self._shown_folder):
            raise NotImplementedError

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any] | None:
        """Return the card as it is now; None, and so the plain repr, of a session that records nothing."""
        if self._shown_folder is None:
            return None
        from .live_display import static_bundle

        return static_bundle(self._shown_folder) | {"text/plain": repr(self)}
