"""Commands that change what a run measures while it goes on, and the mailbox that carries them.

Posted from any thread (the script, the browser, the API); taken out at a step boundary on the training
thread, which never waits: nothing here takes a lock. A command is checked when it is made.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, TypeAlias

from ..settings.levels import (
    LABELS,
    Level,
    Settings,
    check_features,
    check_level,
    check_overhead_limit,
    check_preset,
)

Source: TypeAlias = Literal["script", "browser", "api"]
MAX_WAITING: Final = 64
"""More than this only pile up while training stands still; then new ones are refused."""


@dataclass(frozen=True, slots=True)
class SetLevel:
    """Go to another level; a preset is left, single switches stay.

    Raises:
        ValueError: no such level.
    """

    level: Level
    source: Source = "script"

    def __post_init__(self) -> None:
        check_level(self.level)

    def apply(self, settings: Settings) -> Settings:
        """Return the settings after the command."""
        return replace(settings, level=self.level, preset=None)


@dataclass(frozen=True, slots=True)
class SetPreset:
    """Take a preset's switches over those of the level; None goes back to the level's own.

    Raises:
        ValueError: no such preset.
    """

    preset: str | None
    source: Source = "script"

    def __post_init__(self) -> None:
        check_preset(self.preset)

    def apply(self, settings: Settings) -> Settings:
        """Return the settings after the command."""
        return replace(settings, preset=self.preset)


@dataclass(frozen=True, slots=True)
class SetFeatures:
    """Set single switches, each to a period in steps, 0 for never, or None: as level and preset have it.

    Raises:
        ValueError: an unknown feature, or a period out of range.
    """

    features: Mapping[str, int | None]
    source: Source = "script"

    def __post_init__(self) -> None:
        if not isinstance(self.features, Mapping):
            check_features(self.features)
        # None is checked as the valid period 0: the name must be a feature's all the same.
        check_features({name: 0 if period is None else period for name, period in self.features.items()})
        object.__setattr__(self, "features", dict(self.features))

    def apply(self, settings: Settings) -> Settings:
        """Return the settings after the command."""
        merged = {**settings.overrides, **self.features}
        return replace(settings, overrides={name: p for name, p in merged.items() if p is not None})


@dataclass(frozen=True, slots=True)
class SetLimit:
    """Set the overhead limit, a fraction of the step: 0 is none, None the level's or the preset's.

    Raises:
        ValueError: no fraction.
    """

    overhead_limit: float | None
    source: Source = "script"

    def __post_init__(self) -> None:
        check_overhead_limit(self.overhead_limit)

    def apply(self, settings: Settings) -> Settings:
        """Return the settings after the command."""
        return replace(settings, overhead_limit=self.overhead_limit)


Command: TypeAlias = SetLevel | SetPreset | SetFeatures | SetLimit


def commands_for(options: Mapping[str, Any], settings: Settings) -> list[Command]:
    """Return the commands by which a running session follows options of `watch`; None is "not given".

    Args:
        options: as `watch` takes them; those that do not say what is measured are left alone.
        settings: of the session; the level that it has already leaves its preset as it is.

    Raises:
        ValueError: a value that is not allowed.
    """
    given = {name: value for name, value in options.items() if value is not None}
    commands: list[Command] = []
    if given.get("level", settings.level) != settings.level:
        commands.append(SetLevel(given["level"]))
    if "preset" in given:
        commands.append(SetPreset(given["preset"]))
    if "parameter_norm_every" in given:
        commands.append(SetFeatures({"parameter_norms": given["parameter_norm_every"]}))
    if "features" in given:
        commands.append(SetFeatures(given["features"]))
    if "overhead_limit" in given:
        commands.append(SetLimit(given["overhead_limit"]))
    return commands


class Mailbox:
    """Commands on their way to the training thread, in order.

    Attributes:
        waiting: true while there are any: `if mailbox.waiting:` is the whole cost of a step without.
    """

    __slots__ = ("waiting",)

    def __init__(self) -> None:
        self.waiting: deque[Command] = deque()

    def post(self, command: Command) -> bool:
        """Leave a command, on any thread; False when `MAX_WAITING` of them are waiting already."""
        # Threads that post at the same moment may go past the limit by one each.
        if len(self.waiting) >= MAX_WAITING:
            return False
        self.waiting.append(command)
        return True

    def drain(self) -> list[Command]:
        """Take out what was waiting when this was called; on the training thread."""
        return [self.waiting.popleft() for _ in range(len(self.waiting))]


def describe_change(old: Settings, new: Settings, source: Source = "script") -> str | None:
    """Say in the message of a `level_changed` event what a command changed; None when it changed nothing."""
    lines = _changed_features(old, new)
    if (old.level, old.preset, old.limit) == (new.level, new.preset, new.limit) and not lines:
        return None
    return "\n".join([f"{_headline(old, new)}, asked for by the {_SOURCES[source]}", *lines])


_SOURCES: Final[Mapping[Source, str]] = {"script": "script", "browser": "page", "api": "HTTP API"}


def _headline(old: Settings, new: Settings) -> str:
    parts = []
    if (old.level, old.preset) != (new.level, new.preset):
        parts.append(f"level {_name(new)} instead of {_name(old)}")
    if old.limit != new.limit:
        parts.append(f"overhead limit {_percent(new.limit)} instead of {_percent(old.limit)}")
    if not parts:
        changed = [LABELS[name].lower() for name, _, _ in _differences(old, new)]
        parts.append(f"other periods for {', '.join(changed)}")
    text = ", ".join(parts)
    return text[0].upper() + text[1:]


def _name(settings: Settings) -> str:
    return settings.level if settings.preset is None else f"{settings.level} with preset {settings.preset}"


def _percent(limit: float) -> str:
    return f"{limit * 100:g} %" if limit else "none"


def _differences(old: Settings, new: Settings) -> list[tuple[str, int, int]]:
    """(feature, old period, new period) of every feature that differs."""
    before, after = old.features.periods(), new.features.periods()
    return [(name, before[name], after[name]) for name in after if before[name] != after[name]]


def _changed_features(old: Settings, new: Settings) -> list[str]:
    """One line for each feature, such as "Activations: every 10 steps (was: never)"."""
    return [
        f"{LABELS[name]}: {_every(after)} (was: {_every(before)})"
        for name, before, after in _differences(old, new)
    ]


def _every(period: int) -> str:
    if period <= 1:
        return "every step" if period else "never"
    return f"every {period} steps"
