"""Exports: the JSON object's contract, and an HTML file that is self-contained and keeps run text as text."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import page_runs
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sample_events import MODEL_CODE, RUN, nan_event, own_frame, spike_event
from sample_runs import LAYERS, write_models, write_run

from dashboard.cli import main
from dashboard.errors import UnknownRunError
from dashboard.export.figures import difference
from dashboard.export.html import export_html, script_json
from dashboard.export.json import export_json
from dashboard.ingest.spool import SpoolIngest
from dashboard.page.views.chart_specs import CHARTS
from dashboard.store.duck import DuckStore
from dashboard.store.protocol import StepRange
from probe.wire import Origin, Stacks, StreamKey
from probe.wire.event_json import event_json

HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>"


def filled_store(folder: Path, **run: Any) -> DuckStore:
    store = DuckStore(folder / "data")
    spool = folder / "spool"
    SpoolIngest(store, spool).run_one(write_run(spool, **run))
    return store


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DuckStore]:
    opened = filled_store(tmp_path_factory.mktemp("export"), steps=450)
    yield opened
    opened.close()


class Page(HTMLParser):
    """Collects what the tests ask about: tags, script texts, all other text."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.words: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attributes)))
        if tag == "script":
            self.scripts.append("")

    def handle_data(self, data: str) -> None:
        if self.tags and self.tags[-1][0] == "script":
            self.scripts[-1] += data
        elif self.tags and self.tags[-1][0] != "style":
            self.words.append(data)

    @property
    def text(self) -> str:
        return "".join(self.words)


def test_export_json_is_plain_json_with_the_documented_parts(store: DuckStore) -> None:
    document = json.loads(json.dumps(export_json(store, RUN), allow_nan=False))
    assert (document["format"], document["v"], document["run"]["id"]) == ("nanscope-run", 1, RUN)
    assert document["range"]["covered"] == {"first": 0, "end": 450}
    assert [layer["name"] for layer in document["layout"]["layers"]] == list(LAYERS)


def test_export_json_events_are_those_of_the_events_command(store: DuckStore) -> None:
    assert export_json(store, RUN)["events"] == [event_json(spike_event()), event_json(nan_event())]


def test_export_json_nan_of_the_loss_is_a_string_at_its_step(store: DuckStore) -> None:
    loss = export_json(store, RUN)["series"]["loss"]
    assert loss["mean"][loss["step"].index(400)] == "NaN"
    assert [value for value in loss["mean"] if isinstance(value, str)] == ["NaN"]


def test_export_json_heatmap_matches_what_was_written(store: DuckStore) -> None:
    heatmap = export_json(store, RUN)["heatmap"]
    assert heatmap["rows"] == list(LAYERS)
    assert heatmap["steps_per_column"] == 1
    assert [row[400] for row in heatmap["values"]] == ["NaN"] * 3
    assert heatmap["values"][2][0] == pytest.approx(3.0)


def test_export_json_range_cuts_series_and_events(store: DuckStore) -> None:
    document = export_json(store, RUN, steps=StepRange(first=100, end=200))
    assert [event["step"] for event in document["events"]] == [120]
    assert document["series"]["loss"]["step"] == list(range(100, 200))


def test_export_json_unknown_run_or_rank_is_refused(store: DuckStore) -> None:
    with pytest.raises(UnknownRunError, match="no run nosuch"):
        export_json(store, "nosuch")
    with pytest.raises(UnknownRunError, match="no rank 3; it has 0"):
        export_json(store, RUN, rank=3)


def test_export_html_has_no_address_to_load_from(store: DuckStore) -> None:
    tags = Page(export_html(store, RUN)).tags
    assert "script" in {tag for tag, _ in tags}
    for tag, attributes in tags:
        assert not {"src", "href", "srcset", "action", "data"} & set(attributes), tag
        assert tag not in ("link", "iframe", "object", "embed", "base")


def test_export_html_carries_plotly_once(store: DuckStore) -> None:
    assert len(re.findall(r"plotly\.js v\d", export_html(store, RUN))) == 1


def test_export_html_policy_allows_exactly_its_own_two_scripts(store: DuckStore) -> None:
    page = Page(export_html(store, RUN))
    (policy,) = [
        tag["content"] for name, tag in page.tags if tag.get("http-equiv") == "Content-Security-Policy"
    ]
    assert policy is not None
    assert "default-src 'none'" in policy
    assert len(re.findall(r"'sha256-[\w+/=]+'", policy)) == 2
    assert "unsafe-eval" not in policy


def test_export_html_says_range_and_that_nothing_is_down_sampled(store: DuckStore) -> None:
    said = "Covers steps 0 to 449. Nothing is down-sampled: each recorded step is one point."
    assert said in Page(export_html(store, RUN)).text


def test_file_of_a_later_member_says_what_its_run_lacks(tmp_path: Path) -> None:
    store = DuckStore(tmp_path / "data")
    SpoolIngest(store, tmp_path / "spool").run_one(write_models(tmp_path / "spool", "tried", [[0.5], [0.4]]))
    store.skip(StreamKey(run="tried", writer="0-1", stream="events"), 4, 7, "lost")
    store.commit()
    assert "that are missing: 3." in Page(export_html(store, "tried.m1")).text
    store.close()


def test_export_html_says_how_it_was_down_sampled(tmp_path: Path) -> None:
    store = filled_store(tmp_path, steps=2500)
    try:
        text = Page(export_html(store, RUN)).text
    finally:
        store.close()
    assert "A column of the heatmap is the max of 4 steps." in text
    assert "stands for up to 4 steps" in text


def test_export_html_shows_event_origin_frame_and_source(store: DuckStore) -> None:
    text = Page(export_html(store, RUN)).text
    assert "NaN first at step 400 in blocks.3, model.py:26, forward" in text
    assert "aten.sqrt" in text
    assert "project/model.py:26 in forward" in text
    for line in MODEL_CODE.splitlines():
        assert line in text


def test_export_html_has_every_chart(store: DuckStore) -> None:
    page = Page(export_html(store, RUN))
    data = json.loads(page.scripts[0])
    lines = ["loss", "grad_norm", "memory", "memory_growth", "machine_memory"]
    assert list(data) == [*lines, "timeline", "heatmap"]
    charts = {tag["id"] for _, tag in page.tags if tag.get("class") == "chart"}
    assert charts == {f"chart-{name}" for name in data}


def test_export_html_run_text_is_never_markup(tmp_path: Path) -> None:
    frame = own_frame(file=f"/x/{HOSTILE}.py", function=HOSTILE, code=f"x = '{HOSTILE}'", code_first_line=26)
    event = nan_event(
        message=f"{HOSTILE}\n{HOSTILE}",
        subject=HOSTILE,
        kind=HOSTILE,
        advice=[HOSTILE],
        propagated_to=[HOSTILE],
        model=HOSTILE,
        origin=Origin(phase="forward", op=HOSTILE, module=HOSTILE, stage=HOSTILE),
        stacks=Stacks(forward=[frame]),
    )
    store = filled_store(tmp_path, events=[event], steps=5, layers=[HOSTILE, "b"], name=HOSTILE)
    try:
        page = Page(export_html(store, RUN))
    finally:
        store.close()
    assert [name for name, _ in page.tags].count("script") == 3
    assert "img" not in {name for name, _ in page.tags}
    assert page.text.count(HOSTILE) >= 9


def test_export_html_of_very_many_events_keeps_the_stacks_of_the_severest(tmp_path: Path) -> None:
    stacks = Stacks(forward=[own_frame()])
    store = filled_store(
        tmp_path, events=[*(spike_event(step, stacks=stacks) for step in range(250)), nan_event()]
    )
    try:
        page = Page(export_html(store, RUN))
    finally:
        store.close()
    classes = [tag.get("class") for _, tag in page.tags]
    assert classes.count("event") == 251
    assert classes.count("event-stack") == 199 + 2
    assert "Stack traces of the 200 severest events only" in page.text


def test_script_json_cannot_end_its_element() -> None:
    text = script_json({"a": "</script><!--&"})
    assert not set(text) & set("<>&")
    assert json.loads(text) == {"a": "</script><!--&"}


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(0, 3) | st.text(max_size=2),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=8,
)


def apply_patch(base: Any, patch: Any) -> Any:
    """What `page.js` does with a difference."""
    if "set" in patch:
        return patch["set"]
    if isinstance(base, list):
        return [apply_patch(item, patch["change"].get(str(i), {"set": item})) for i, item in enumerate(base)]
    return base | {key: apply_patch(base.get(key), change) for key, change in patch["change"].items()}


def without_none(value: Any) -> Any:
    """Plotly reads a null attribute as an absent one."""
    if isinstance(value, dict):
        return {key: without_none(item) for key, item in value.items() if item is not None}
    return [without_none(item) for item in value] if isinstance(value, list) else value


@given(
    st.dictionaries(st.sampled_from("abc"), json_values), st.dictionaries(st.sampled_from("abc"), json_values)
)
def test_difference_applied_to_the_base_gives_the_other(base: Any, other: Any) -> None:
    assert without_none(apply_patch(base, difference(base, other))) == without_none(other)


@pytest.fixture(scope="module")
def full_store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DuckStore]:
    opened = DuckStore(tmp_path_factory.mktemp("full"))
    page_runs.fill(opened, steps=range(100), is_full=True)
    yield opened
    opened.close()


def test_export_json_has_the_chosen_statistic(full_store: DuckStore) -> None:
    heatmap = export_json(full_store, "demo-run", statistic="activation_rms")["heatmap"]
    assert (heatmap["statistic"], heatmap["measured_every"]) == ("activation_rms", 5)
    assert heatmap["rows"][0] == "" and set(heatmap["row_kinds"]) == {"module"}
    assert [set(row[:-1]) for row in heatmap["values"]][:2] == [{1.0}, {3.0}]


def test_export_html_has_the_chosen_statistic_every_chart_and_the_users_own(full_store: DuckStore) -> None:
    page = Page(export_html(full_store, "demo-run", statistic="activation_rms"))
    labels = [
        attributes.get("aria-label") for tag, attributes in page.tags if attributes.get("class") == "chart"
    ]
    assert labels == [
        *(spec.title for spec in CHARTS), "Events", "Activation RMS per module", "<b>bold</b>", "accuracy",
    ]  # fmt: skip
    assert not [tag for tag, _ in page.tags if tag == "b"]


def test_export_of_very_many_series_stays_bounded(
    full_store: DuckStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dashboard.export.snapshot.MAX_VALUES", 480)
    document = export_json(full_store, "demo-run")
    assert sum(len(series["step"]) for series in document["series"].values()) <= 480


def test_export_command_writes_json_from_journals_alone(tmp_path: Path) -> None:
    write_run(tmp_path / "spool", steps=20)
    target = tmp_path / "out.json"
    assert main(["export", str(tmp_path / "spool"), "--format", "json", "-o", str(target)]) == 0
    assert json.loads(target.read_text())["range"]["covered"]["end"] == 401


def test_export_command_unwritable_file_is_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_run(tmp_path / "spool", steps=5)
    assert main(["export", str(tmp_path / "spool"), "-o", str(tmp_path / "no" / "out.html")]) == 2
    assert capsys.readouterr().err.count("\n") == 1
