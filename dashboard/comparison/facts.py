"""What runs were started with, side by side: arguments, configuration, versions, code, seeds. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from probe.wire import Layout, RunStart
from probe.wire.start_facts import StartFacts

GROUPS: Final = ("Configuration", "Arguments", "Options of watch", "Seeds", "Versions", "Code", "Machine")


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """One fact that is not the same in all runs."""

    group: str
    """One of `GROUPS`."""
    name: str
    values: tuple[str | None, ...]
    """A value a run; None where the run has none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What differs, and how much does not."""

    differing: tuple[Fact, ...]
    """By group in the order of `GROUPS`."""
    equal: Mapping[str, int]
    """Group -> facts that are the same in all runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutDifference:
    """How the models of two runs differ, by parameters; names in model order."""

    only_first: tuple[str, ...]
    only_second: tuple[str, ...]
    reshaped: tuple[str, ...]
    """Of another shape or dtype."""

    @property
    def is_equal(self) -> bool:
        """Whether the models have the same parameters."""
        return not (self.only_first or self.only_second or self.reshaped)


def compare_facts(runs: Sequence[tuple[RunStart, StartFacts | None]]) -> Facts:
    """Return what differs between runs.

    Args:
        runs: of each what it said at its start, and its start facts where they are there.
    """
    sides = [_facts_of(start, facts) for start, facts in runs]
    differing: list[Fact] = []
    equal: dict[str, int] = {}
    for group in GROUPS:
        names = dict.fromkeys(name for side in sides for name in side[group])
        for name in names:
            values = tuple(side[group].get(name) for side in sides)
            if len(set(values)) == 1:
                equal[group] = equal.get(group, 0) + 1
            elif not _is_told(differing, group, name, values):
                differing.append(Fact(group=group, name=name, values=values))
    return Facts(differing=tuple(differing), equal=equal)


def compare_layouts(first: Layout | None, second: Layout | None) -> LayoutDifference:
    """Return how two models differ; an unknown one differs in nothing."""
    if first is None or second is None:
        return LayoutDifference(only_first=(), only_second=(), reshaped=())
    one, other = _shapes(first), _shapes(second)
    return LayoutDifference(
        only_first=tuple(name for name in one if name not in other),
        only_second=tuple(name for name in other if name not in one),
        reshaped=tuple(name for name in one if name in other and one[name] != other[name]),
    )


def argument_values(argv: Sequence[str]) -> dict[str, str]:
    """Return the arguments of a command line by option; what belongs to none by its place, "1" onwards.

    Args:
        argv: as Python has it; the script's own name, its first, is left out.
    """
    found: dict[str, str] = {}
    place = 0
    arguments = list(_joined(argv[1:]))
    for name, value in arguments:
        if name:
            found[name] = f"{found[name]} {value}" if name in found else value
        else:
            place += 1
            found[str(place)] = value
    return found


def _joined(arguments: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield (option, value); an option's value is what follows it and is no option itself."""
    pending: str | None = None
    for argument in arguments:
        is_option = argument.startswith("-") and not _is_number(argument) and argument != "-"
        if pending is not None and not is_option:
            yield pending, argument
            pending = None
            continue
        if pending is not None:
            yield pending, "given"
            pending = None
        name, separator, value = argument.partition("=")
        if is_option and separator:
            yield name, value
        elif is_option:
            pending = argument
        else:
            yield "", argument
    if pending is not None:
        yield pending, "given"


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _facts_of(start: RunStart, facts: StartFacts | None) -> dict[str, dict[str, str]]:
    """Group -> name -> value."""
    seeds = dict(start.seeds) or ({} if start.torch_seed is None else {"torch": str(start.torch_seed)})
    code = {"script": start.argv[0] if start.argv else start.name, "commit": start.git_commit or "none"}
    if facts is not None and facts.work_tree is not None:
        tree = facts.work_tree
        code["changes since the commit"] = tree.sha256[:12] if tree.size_bytes else "none"
    machine = {
        "host": start.host,
        "devices": ", ".join(start.devices),
        "ranks": str(start.world_size),
        "working directory": start.working_directory,
    }
    return {
        "Configuration": dict(start.config),
        "Arguments": argument_values(start.argv),
        "Options of watch": {"level": start.level, **start.options},
        "Seeds": seeds,
        "Versions": dict(start.versions),
        "Code": code,
        "Machine": machine,
    }


def _is_told(differing: Sequence[Fact], group: str, name: str, values: tuple[str | None, ...]) -> bool:
    """Whether the configuration, read from the arguments, has said it already."""
    if group != "Arguments":
        return False
    plain = name.lstrip("-").replace("-", "_")
    return any(
        fact.name == plain
        and all(value in (None, known) for value, known in zip(values, fact.values, strict=True))
        for fact in differing
    )


def _shapes(layout: Layout) -> dict[str, tuple[str, tuple[int, ...]]]:
    return {each.name: (each.dtype, tuple(each.shape)) for each in layout.parameters}
