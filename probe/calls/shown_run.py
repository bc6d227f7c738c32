"""`probe.show`: a run as a card in a notebook, as text elsewhere. Reads journals; starts no session."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..actions.notebook.live_display import card_of, show_live, static_bundle
from ..actions.notebook.run_follower import RunFollower
from ..delivery.journal.run_folders import list_writers
from ..session import Probe
from ..settings.places import default_spool, is_folder_name


@dataclass(frozen=True, slots=True, repr=False)
class ShownRun:
    """A run as it was when it was shown: HTML for who can draw it, text for all."""

    folder: Path
    """`SPOOL/<run>`."""
    text: str = field(default="")

    def __repr__(self) -> str:
        return self.text

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        return static_bundle(self.folder)


def show(run: Probe | str | Path) -> ShownRun | None:
    """Show a run: in a notebook a card under the cell, which is redrawn while the training goes on.

    Verdict, newest step, loss, gradient norm and a small heatmap of the layers; with a link where a dashboard
    runs. What it costs the training is a look into the journal once a second, on a thread of its own.

    Args:
        run: what `watch` returned, a run's id, or its folder in a spool.

    Returns:
        None where the card is on the screen; elsewhere what prints as text.

    Raises:
        ValueError: there is no such run, or it records nothing.
    """
    folder = _folder_of(run)
    if show_live(folder):
        return None
    follower = RunFollower(folder)
    while follower.look():
        pass
    return ShownRun(folder, card_of(follower).text())


def _folder_of(run: Probe | str | Path) -> Path:
    if isinstance(run, Probe):
        if run._shown_folder is None:
            raise ValueError("show(): this session records nothing")
        return run._shown_folder
    if not isinstance(run, str | Path):
        raise ValueError(f"show() takes a session, a run's id or its folder, got {type(run).__name__}")
    named = default_spool() / run if isinstance(run, str) and is_folder_name(run) else None
    for folder in (named, Path(run).expanduser()):
        if folder is not None and folder.is_dir() and list_writers(folder):
            return folder
    raise ValueError(f"show(): there is no run {str(run)!r} in {default_spool()}, and no such folder")
