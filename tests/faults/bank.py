"""Reads the fault bank: what each script's header says, and which half of the bank it belongs to.

A script knows nothing of this: it is plain PyTorch. Its docstring is a sentence and, after an empty line,
fields:

    family   forward, backward, optimisation, initialisation, data, wiring, memory, process, distributed;
             or healthy
    kinds    of a fault: the event kinds by which an expert would say that it was found
    step     of a fault: the 0-based step at which it begins
    module   of a fault with an origin: the module's name, "" for the root, outside for code in no module;
             `|` between several that are right
    origin   none: of a NaN or Inf whose step cannot be replayed, as no backward or a healthy one is called
    ends     how the process ends, when not with exit code 0: error, or killed (it hangs)
    limit_s  after how many seconds it is killed
    steps    of a healthy script: how many it trains
    tempts   of a healthy script: the kinds that a careless detector would report

The mistake stands on the lines that end in `# FAULT`; where the first bad value arises elsewhere, that line
ends in `# ORIGIN`, and naming either is right.
"""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

Half = Literal["tuning", "reported"]
FOLDER: Final = Path(__file__).parent
FAMILIES: Final = (
    *("forward", "backward", "optimisation", "initialisation", "data", "wiring"),
    *("memory", "process", "distributed"),
)
LOCATED_KINDS: Final = frozenset({"exception", "out_of_memory", "hang", "memory_leak"})
"""Besides non-finite values, what happens at a line that an event can name."""
_FIELDS: Final = frozenset(
    {"family", "kinds", "step", "module", "origin", "ends", "limit_s", "steps", "tempts"}
)
_DEFAULT_LIMIT_S: Final = 90.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """One script of the bank and the truth about it."""

    path: Path
    description: str
    family: str
    kinds: tuple[str, ...] = ()
    step: int = 0
    modules: tuple[str | None, ...] = ()
    """Right names of the origin's module; None is code outside any module; empty where there is no origin."""
    has_origin: bool = True
    """Whether a replay can name the origin of a NaN or Inf."""
    ends: str = "exit"
    limit_s: float = _DEFAULT_LIMIT_S
    steps: int = 0
    tempts: tuple[str, ...] = ()
    fault_lines: frozenset[int] = frozenset()
    origin_lines: frozenset[int] = frozenset()

    @property
    def name(self) -> str:
        return self.path.stem

    @property
    def is_healthy(self) -> bool:
        return self.family == "healthy"

    @property
    def is_nonfinite(self) -> bool:
        """Whether what goes wrong is a NaN or Inf, so that it has one origin."""
        return (
            self.has_origin
            and any(kind.startswith("nonfinite_") for kind in self.kinds)
            and all(kind.startswith("nonfinite_") or kind == "amp_overflow" for kind in self.kinds)
        )

    @property
    def has_line(self) -> bool:
        """Whether an event of it can be expected to name its line."""
        return self.is_nonfinite or (bool(self.kinds) and LOCATED_KINDS.issuperset(self.kinds))

    @property
    def right_lines(self) -> frozenset[int]:
        return self.fault_lines | self.origin_lines

    @property
    def half(self) -> Half:
        """By the name alone, so that no script changes sides when others come."""
        return "tuning" if hashlib.sha256(self.name.encode()).digest()[0] % 2 == 0 else "reported"


def load_bank(folder: Path = FOLDER) -> list[Script]:
    """Return every script, the faulty ones first, each by name.

    Raises:
        ValueError: a header cannot be read.
    """
    return [
        read_script(path) for kind in ("faulty", "healthy") for path in sorted((folder / kind).glob("*.py"))
    ]


def read_script(path: Path) -> Script:
    """Return what a script's header and markers say.

    Raises:
        ValueError: it has no docstring of the form above.
    """
    text = path.read_text()
    docstring = ast.get_docstring(ast.parse(text))
    if docstring is None or "\n\n" not in docstring:
        raise ValueError(f"{path.name}: no header")
    description, _, block = docstring.partition("\n\n")
    fields = dict(_field(path, line) for line in block.splitlines())
    return Script(
        path=path,
        description=description,
        family=fields.get("family", ""),
        kinds=_words(fields.get("kinds", "")),
        step=int(fields.get("step", 0)),
        modules=tuple(_module(name) for name in fields["module"].split("|")) if "module" in fields else (),
        has_origin=fields.get("origin") != "none",
        ends=fields.get("ends", "exit"),
        limit_s=float(fields.get("limit_s", _DEFAULT_LIMIT_S)),
        steps=int(fields.get("steps", 0)),
        tempts=_words(fields.get("tempts", "")),
        fault_lines=_marked(text, "# FAULT"),
        origin_lines=_marked(text, "# ORIGIN"),
    )


def problems_of(script: Script, known_kinds: Iterable[str]) -> list[str]:
    """Return what is wrong with a header, as sentences; empty when nothing is."""
    found = []
    unknown = {*script.kinds, *script.tempts} - set(known_kinds)
    if unknown:
        found.append(f"no such kind: {sorted(unknown)}")
    if script.ends not in ("exit", "error", "killed"):
        found.append(f"ends: {script.ends}")
    if script.is_healthy:
        if not script.steps or not script.tempts:
            found.append("a healthy script says its steps and what it tempts")
        if script.kinds or script.right_lines:
            found.append("a healthy script has no fault")
        return found
    if script.family not in FAMILIES:
        found.append(f"family: {script.family}")
    if not script.kinds or not script.fault_lines:
        found.append("a faulty script has kinds and a line marked with FAULT")
    if script.is_nonfinite and not script.modules:
        found.append("a non-finite value has a module")
    return found


def _field(path: Path, line: str) -> tuple[str, str]:
    name, colon, value = line.partition(":")
    if not colon or name not in _FIELDS:
        raise ValueError(f"{path.name}: header line {line!r}")
    return name, value.strip()


def _words(value: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in value.split(",") if word.strip())


def _module(name: str) -> str | None:
    name = name.strip()
    return None if name == "outside" else name.strip('"')


def _marked(text: str, mark: str) -> frozenset[int]:
    """Numbers of the lines whose trailing comment begins with the mark."""
    return frozenset(number for number, line in enumerate(text.splitlines(), 1) if f"  {mark}" in line)
