"""The calls of a session that profile: a part of `Probe`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from .profile_desk import DEFAULT_STEPS, ProfileDesk

if TYPE_CHECKING:
    from .profile_body import MadeProfile
    from .profiled_block import profiling


class ProfileCalls:
    """Methods of `Probe`."""

    def _profile_desk(self) -> ProfileDesk | None:
        """The session's; None where nothing is recorded."""
        raise NotImplementedError

    def profile(self, steps: int = DEFAULT_STEPS) -> None:
        """Profile the next steps; works from any thread, and returns at once.

        Recording begins with the end of the step under way. After the last one an event (kind `profile`) says
        what was found and where the Chrome trace is; the page has the tables. A profile ends early after
        60 s, and keeps at most 64 MiB of a trace. On an inert handle nothing happens.

        Args:
            steps: how many, 1 to 100.

        Raises:
            ValueError: the number is out of range, a profile is being taken already, or the level is off.
        """
        desk = self._profile_desk()
        if desk is not None:
            desk.ask(steps, "run.profile()")

    def profiling(
        self,
        output_file: str | os.PathLike[str] | None = None,
        enabled: bool | None = None,
        *,
        steps: int | None = None,
        memory: bool = True,
        shapes: bool = True,
        stacks: bool = True,
    ) -> profiling:
        """See `probe.profiling`; the profile is kept with the run, too, as those of `profile` are."""
        from .profiled_block import profiling

        return profiling(
            output_file,
            enabled,
            steps=steps,
            memory=memory,
            shapes=shapes,
            stacks=stacks,
            keep=self._keep_profile,
        )

    def _keep_profile(self, made: MadeProfile, _: Path | None) -> None:
        from .kept_profiles import keep_profile

        desk = self._profile_desk()
        if desk is not None and desk.is_open:
            keep_profile(desk.parts, made, "block")
