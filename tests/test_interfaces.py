"""`docs/interfaces.md` says of events, commands and the environment what the product has."""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import Any

from dashboard.arguments import command_parser
from probe.wire import KINDS, Event
from probe.wire.event_json import event_json

PAGE = (Path(__file__).resolve().parent.parent / "docs" / "interfaces.md").read_text(encoding="utf-8")


def event() -> dict[str, Any]:
    made = Event(
        id="0" * 16,
        run="a",
        rank=0,
        incarnation=1,
        step=0,
        time=0.0,
        kind="hang",
        severity="info",
        message="",
    )
    return event_json(made)


def test_page_lists_every_kind_of_event() -> None:
    listed = PAGE.partition("- Kinds:")[2].partition("##")[0]
    assert set(re.findall(r"`(\w+)`", listed)) == KINDS


def test_page_lists_the_fields_of_an_event_in_their_order() -> None:
    listed = PAGE.partition("```\n{")[2].partition("}\n```")[0]
    assert re.findall(r"\w+", re.sub(r"\{[^}]*\}|\| null", "", listed)) == list(event())


def test_page_lists_the_fields_of_evidence_and_stacks() -> None:
    for part in ("evidence", "stacks"):
        listed = PAGE.partition(part + "{")[2].partition("}")[0]
        assert re.findall(r"\w+", listed) == list(event()[part])


def test_page_lists_every_command() -> None:
    parsers = next(
        action for action in command_parser()._actions if isinstance(action, argparse._SubParsersAction)
    )
    table = [line for line in PAGE.splitlines() if line.startswith("| `dashboard ")]
    assert {re.match(r"\| `dashboard (\w+)", line)[1] for line in table} == set(parsers.choices)  # type: ignore[index]


def test_page_names_only_options_that_a_command_has() -> None:
    parsers = next(
        action for action in command_parser()._actions if isinstance(action, argparse._SubParsersAction)
    )
    for line in PAGE.splitlines():
        if line.startswith("| `dashboard "):
            signature = line.split(" | ")[0]
            named = re.findall(r"(?<= |\[)--?[a-z-]+", signature.replace("--no-python", ""))
            command = parsers.choices[re.match(r"\| `dashboard (\w+)", line)[1]]  # type: ignore[index]
            known = {option for action in command._actions for option in action.option_strings} | {"-m"}
            assert set(named) <= known
