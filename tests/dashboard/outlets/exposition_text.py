"""Prometheus' text format 0.0.4, read by its rules and by nothing of ours: a line that breaks one fails.

https://prometheus.io/docs/instrumenting/exposition_formats/, and what `promtool check metrics` asks of names.
"""

from __future__ import annotations

import re

_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\\n]|\\\\|\\"|\\n)*)"(,|\})')
_ESCAPE = re.compile(r"\\(.)")
Key = tuple[str, frozenset[tuple[str, str]]]


def read_exposition(text: str) -> dict[Key, float]:
    """(name, labels) -> value.

    Raises:
        AssertionError: the text breaks a rule; says which line.
    """
    assert text.endswith("\n")
    types: dict[str, str] = {}
    helped: set[str] = set()
    closed: set[str] = set()
    current = ""
    found: dict[Key, float] = {}
    for line in text[:-1].split("\n"):
        if line.startswith("# HELP "):
            name = line.split(" ", 3)[2]
            assert name not in helped, f"a second HELP: {line}"
            assert _NAME.fullmatch(name), line
            assert line.split(" ", 3)[3], f"no text: {line}"
            helped.add(name)
            continue
        if line.startswith("# TYPE "):
            _, _, name, kind = line.split(" ")
            assert name not in types, f"a second TYPE: {line}"
            assert name in helped, f"no HELP: {line}"
            assert kind in ("counter", "gauge"), line
            assert (kind == "counter") == name.endswith("_total"), f"promtool: {line}"
            closed.add(current)
            types[name], current = kind, name
            continue
        key, value = _sample(line)
        assert key[0] == current, f"a sample outside of its family: {line}"
        assert current not in closed, f"the family comes in two parts: {line}"
        assert key not in found, f"twice: {line}"
        if types[current] == "counter":
            assert value >= 0, line
        found[key] = value
    return found


def _sample(line: str) -> tuple[Key, float]:
    name = _NAME.match(line)
    assert name, line
    rest, labels = line[name.end() :], {}
    if rest.startswith("{"):
        at, end = 1, ","
        while end == ",":
            label = _LABEL.match(rest, at)
            assert label, line
            key, text, end = label.groups()
            assert key not in labels, line
            assert not key.startswith("__"), line
            labels[key] = _ESCAPE.sub(lambda escape: {"n": "\n"}.get(escape[1], escape[1]), text)
            at = label.end()
        rest = rest[at:]
    assert re.fullmatch(r" (NaN|[+-]Inf|[-+0-9.eE]+)", rest), line
    return (name[0], frozenset(labels.items())), float(rest)
