"""`docs/setups.md` names every test of this folder, and every name in it is a test."""

import re
from pathlib import Path

TESTS = Path(__file__).parents[1]
PAGE = TESTS.parent / "docs" / "setups.md"


def names_in(folder: str) -> set[str]:
    sources = "\n".join(path.read_text() for path in (TESTS / folder).rglob("test_*.py"))
    return set(re.findall(r"^def test_(\w+)", sources, re.MULTILINE))


def test_table_names_every_test_of_this_folder_and_no_other() -> None:
    rows = PAGE.read_text().partition("<!-- setups:")[2].splitlines()[3:]
    named = set(re.findall(r"`(\w+)`", " ".join(row.split("|")[3] for row in rows if row.startswith("|"))))
    here = names_in("setups") - {"table_names_every_test_of_this_folder_and_no_other"}
    assert here - named == set()
    assert named - here - names_in("probe") == set()
