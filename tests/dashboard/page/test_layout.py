"""The page's skeleton: every id that Python and the scripts share is there once."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from dashboard import ids
from dashboard.page.callbacks.page import BRIDGES
from dashboard.page.layout import page_facts, page_layout
from dashboard.page.views.chart_specs import CHARTS
from dashboard.page.views.key_sheet import KEYS

ASSETS = Path(__file__).parents[3] / "assets"
LAYOUT = page_layout(page="http://127.0.0.1:8050/", ingest="tcp://127.0.0.1:8051")


def all_ids() -> list[str]:
    return [part.id for part in LAYOUT._traverse() if getattr(part, "id", None)] + [LAYOUT.id]


def test_layout_ids_are_unique() -> None:
    found = all_ids()
    assert len(found) == len(set(found))


def test_layout_has_every_id_of_the_constants() -> None:
    named = {value for name, value in vars(ids).items() if name.isupper()}
    assert named <= set(all_ids())


def test_layout_has_every_element_that_the_scripts_look_up() -> None:
    scripts = "\n".join(path.read_text() for path in sorted(ASSETS.glob("ns_*.js")))
    looked_up = set(re.findall(r'(?:byId|setProps)\("([\w-]+)"[,)]', scripts))
    assert looked_up - set(all_ids()) == set()
    assert "heatmap-canvas" in looked_up


def test_layout_has_every_element_whose_type_the_scripts_declare() -> None:
    declared = "\n".join(path.read_text() for path in (Path(__file__).parents[2] / "js").glob("*.d.ts"))
    tables = re.findall(r"^interface PageElements \{\n(.*?)^\}", declared, re.MULTILINE | re.DOTALL)
    names = re.findall(r'^  "?([\w-]+)"?: ', "".join(tables), re.MULTILINE)
    assert "heatmap-canvas" in names and set(names) - set(all_ids()) == set()


def test_layout_empty_state_says_how_to_attach() -> None:
    said = repr(LAYOUT)
    for needed in ("probe.watch(model, optimizer)", "tcp://127.0.0.1:8051", "dashboard demo"):
        assert needed in said


def test_facts_name_every_chart_series_and_mark() -> None:
    facts = {chart["id"]: chart for chart in page_facts()["charts"]}
    assert list(facts) == [spec.id for spec in CHARTS]
    for spec in CHARTS:
        assert facts[spec.id]["names"] == list(spec.names)
        assert set(facts[spec.id]["labels"]) == set(spec.names)
        assert {name: mark["isCount"] for name, mark in facts[spec.id]["marks"].items()} == {
            name: mark.is_count for name, mark in spec.marks.items()
        }


def test_facts_are_plain_json() -> None:
    facts: dict[str, Any] = page_facts()
    assert json.loads(json.dumps(facts)) == facts


def test_bridges_name_functions_and_components_that_exist() -> None:
    script = (ASSETS / "ns_90_callbacks.js").read_text()
    for function, component, _ in BRIDGES:
        assert re.search(rf"^      {function}: (quiet|picked)", script, re.MULTILINE), function
        assert component in all_ids()


def test_scripts_never_write_markup_or_evaluate_text() -> None:
    for path in sorted(ASSETS.glob("ns_*.js")):
        text = path.read_text()
        for forbidden in (
            "innerHTML",
            "outerHTML",
            "insertAdjacentHTML",
            "document.write",
            "eval(",
            "new Function",
        ):
            assert forbidden not in text, f"{forbidden} in {path.name}"
        assert len(text.splitlines()) < 250


def test_scripts_write_text_through_the_functions_that_make_it_visible() -> None:
    direct = re.compile(
        r"(?<!document)\.(textContent|innerText|title) \+?= |setAttribute\(\"(title|aria-label)\""
    )
    for path in sorted(ASSETS.glob("ns_*.js")):
        text = "" if path.name == "ns_00_core.js" else path.read_text()
        found = [match.group() for match in direct.finditer(text)]
        assert found == [], path.name


def test_assets_name_no_other_host() -> None:
    for path in sorted(ASSETS.iterdir()):
        foreign = set(re.findall(r"https?://[\w.]+", path.read_text())) - {"http://www.w3.org"}
        assert foreign == set(), path.name


def test_key_sheet_lists_exactly_the_keys_that_the_script_knows() -> None:
    script = (ASSETS / "ns_80_keys.js").read_text()
    table = script.partition("const KEYS = {")[2].partition("};")[0]
    known = re.findall(r'^    "?([^":\n]+)"?: \(\) =>', table, re.MULTILINE)
    assert sorted(key.replace(" ", "Space") for key in known) == sorted(key for key, _ in KEYS)
