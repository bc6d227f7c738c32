"""Begins the session of one model of a launched script: its run's id and name, and the line on stderr."""

from __future__ import annotations

import os
import re
import sys
import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from ...attach.layout import unwrap
from ...delivery.recorder.run_facts import rank_and_world_size
from ...delivery.recorder.run_id import derive_run_id, has_begun
from ...delivery.stderr import say
from ...loop.member_series import Made, series_of_process

if TYPE_CHECKING:
    from ...actions.watched_session import Session


@dataclass(frozen=True, slots=True)
class Launch:
    """What `dashboard run` left in the environment."""

    run: str
    """Id of the run, where neither the user nor a launcher of ranks gives one."""
    pid: int
    """The process that became the script."""
    is_quiet: bool

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> Launch:
        """Read NANSCOPE_LAUNCH: ``run|pid|quiet|prefix``; `dashboard run` writes it.

        Raises:
            ValueError: it is something else.
        """
        run, pid, quiet, _ = environment.get("NANSCOPE_LAUNCH", "").split("|", 3)
        return cls(run, int(pid), quiet == "1" or environment.get("NANSCOPE_QUIET", "") not in ("", "0"))


class RunNames:
    """Gives every model of every process of a launch the id of its run.

    Args:
        launch: id made at the launch.
        pid: the process that became the script.
    """

    def __init__(self, launch: str, pid: int) -> None:
        self.used: dict[str, object] = {}
        """By each id that is taken, who has taken it: several threads may ask at the same time."""
        self._launch, self._pid = launch, pid

    def next_id(self, model: str, environment: Mapping[str, str] = os.environ) -> str:
        """Return the id for a model that the script calls `model`; a process's first one gets the plain id.

        Ranks agree, because they make the same models in the same order.
        """
        base = self._base(environment)
        chosen, number, asked = base, 1, object()
        label = re.sub(r"[^A-Za-z0-9._-]", "_", model)[:20]
        while self.used.setdefault(chosen, asked) is not asked:
            tail = f"-{label}" if number == 1 else f"-{label}-{number}"
            chosen, number = base[: 64 - len(tail)] + tail, number + 1
        return chosen

    def _base(self, environment: Mapping[str, str]) -> str:
        if chosen := environment.get("NANSCOPE_RUN"):
            return chosen
        if "MASTER_ADDR" in environment and "MASTER_PORT" in environment:
            return derive_run_id(environment)
        is_rank = torch.distributed.is_available() and torch.distributed.is_initialized()
        if os.getpid() == self._pid or (is_rank and torch.distributed.get_world_size() > 1):
            return self._launch
        # Another training that the script started as a process of its own.
        return f"{self._launch}-{os.getpid()}"


class SessionStarter:
    """Begins the sessions of this process, one for each model that it trains."""

    def __init__(self, launch: Launch) -> None:
        self._launch = launch
        self._names = RunNames(launch.run, launch.pid)
        self._named: dict[str, weakref.ref[nn.Module]] = {}

    @property
    def names_in_use(self) -> set[str]:
        """Of the models that have got a session and are still there."""
        return {name for name, model in self._named.items() if model() is not None}

    def _names_for(self, model: nn.Module, variable: str | None, *, has_others: bool) -> dict[str, Any]:
        """Return the options of `watch` that name a run and its model."""
        called = self._name_for(model, variable)
        name = f"{_script_name()} ({called})" if has_others or self.has_started else _script_name()
        return {"name": name, "model_name": called, "run": self._names.next_id(called)}

    def _name_for(self, model: nn.Module, variable: str | None) -> str:
        """No two models of a process have the same."""
        wanted = variable or type(unwrap(model)).__name__
        # With a callback, a reference is no other's: Python shares plain ones of one object.
        name, number, reference = wanted, 2, weakref.ref(model, id)
        while self._named.setdefault(name, reference) is not reference:
            name, number = f"{wanted}-{number}", number + 1
        return name

    @property
    def has_started(self) -> bool:
        """Whether there has been any."""
        return bool(self._names.used)

    def followed_parameters(self) -> set[int]:
        """Identities of the parameters that a session follows, whoever has begun it."""
        if not has_begun():
            return set()
        from ... import session

        models = [running.watched_model for running in session.running_sessions()]
        return {id(parameter) for model in models if model is not None for parameter in model.parameters()}

    def say(self, line: str) -> None:
        """Say a line on stderr, where the launch is not quiet; of several ranks the first one does."""
        if not self._launch.is_quiet and rank_and_world_size()[0] == 0:
            say(line)

    def start(
        self, model: nn.Module, *, variable: str | None, has_others: bool, made: Made | None = None
    ) -> bool:
        """Watch a model from now on; False where that cannot be, or is done already by the script itself.

        Args:
            model: what holds the parameters, in its wrapper, if any.
            variable: what the script calls it, where that is known.
            has_others: the script trains several models: the names of their runs tell them apart.
            made: when and where what updates it was made; tells a further member of a run.
        """
        from ... import session, watching

        if any(_is_watched_by(running, model) for running in session.running_sessions()):
            return False
        is_member = made is not None and series_of_process.find(model, made) is not None
        names = {} if is_member else self._names_for(model, variable, has_others=has_others)
        try:
            # None leaves it to the environment.
            probe = watching.watch_made(model, made, quiet=self._launch.is_quiet or None, **names)
        except ValueError as error:
            say(f"this script is not recorded: {error}")
            return False
        if not probe.active:
            return False
        may_say = not self._launch.is_quiet and rank_and_world_size()[0] == 0
        # The script's own watch() comes second, and its training has to go on.
        probe.tell_refusals_to(_say_refusal if may_say else lambda _: None)
        return True


def _is_watched_by(running: Session, model: nn.Module) -> bool:
    """Whether a session watches the model, a part of it, or what contains it."""
    watched = running.watched_model
    if watched is None:
        return False
    own = unwrap(model)
    return any(part is own for part in watched.modules()) or any(part is watched for part in own.modules())


def _script_name() -> str | None:
    """Name of a module that runs as the script; None leaves it to the file's name."""
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    if spec is not None and sys.argv:
        return str(spec.name).removesuffix(".__main__")
    return Path(sys.argv[0]).name if sys.argv and sys.argv[0] else "python"


def _say_refusal(sentence: str) -> None:
    say(f"warning: {sentence}; the training goes on without it")
