"""The view of all runs: its rows, what is done with a run, and the comparison of ticked ones."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import msgspec
import page_runs
import pytest
from dash import no_update
from page_store import PageStore

from dashboard.page import run_table
from dashboard.page.callbacks.runs import comparison_view, overlay_lines, rows_view, run_action
from dashboard.page.run_table import RunTable
from dashboard.page.views.runs_section import MOST_COMPARED
from dashboard.store.protocol import RunMark, RunSummary
from probe.wire import RunStart


class MarkedStore(PageStore):
    """With marks that can be written, and starts that differ in a learning rate."""

    def __init__(self) -> None:
        super().__init__()
        self.rates: dict[str, str] = {}

    def mark_run(self, run: str, *, note: str | None = None, starred: bool | None = None) -> RunMark:
        before = self.run_marks.get(run, RunMark())
        mark = RunMark(
            note=before.note if note is None else note,
            starred=before.starred if starred is None else starred,
        )
        self.run_marks[run] = mark
        return mark

    def runs(self) -> list[RunSummary]:
        found = super().runs()
        for run in found:
            start: RunStart = run.start
            config = {"lr": self.rates.get(run.run, "0.1")}
            object.__setattr__(run, "start", msgspec.structs.replace(start, config=config))
        return found


@pytest.fixture
def store() -> MarkedStore:
    filled = MarkedStore()
    page_runs.fill(filled, steps=range(300), run="run-a", start_time=1_700_000_000.0)
    page_runs.fill(filled, steps=range(300), run="run-b", start_time=1_700_000_900.0, bad={250: "nan"})
    page_runs.add_event(filled, page_runs.event(250, run="run-b"))
    page_runs.end_run(filled, run="run-b")
    return filled


def act(
    store: MarkedStore, run: str, what: str, value: str = "", spool: Path | None = None
) -> dict[str, object]:
    data = {"run": run, "act": what, "value": value, "mark": 3}
    said: dict[str, object] = run_action(store, data, spool=spool, changed=lambda: None)
    return said


def test_rows_say_of_each_run_what_the_table_shows(store: MarkedStore) -> None:
    store.mark_run("run-b", note="<b>baseline</b>", starred=True)
    newest, oldest = RunTable(store).rows()
    assert (newest["run"], oldest["run"]) == ("run-b", "run-a")
    assert (newest["state"], newest["step"], newest["critical"]) == ("finished", 299, 1)
    assert newest["note"] == "<b>baseline</b>" and "starred" in newest["stays"]
    assert "still being written" in oldest["stays"]
    finite = store.scalars("run-b", 0, ["loss"], max_points=300)["min"].dropna()
    assert newest["best"] == pytest.approx(finite.min())
    assert None in newest["losses"] and None not in oldest["losses"]


def test_models_of_a_run_stay_while_one_of_them_is_trained(store: MarkedStore) -> None:
    newest, oldest = store.runs()
    starts = [msgspec.structs.replace(run.start, run="r") for run in (newest, oldest)]
    store.runs = lambda: [
        replace(newest, start=starts[0], member=1),
        replace(oldest, start=starts[1], member=0),
    ]  # type: ignore[method-assign]
    rows = RunTable(store).rows()
    assert [(row["member"], row["series"]) for row in rows] == [(1, "r"), (0, "r")]
    assert {row["state"] for row in rows} == {"finished", "running"}
    assert all("still being written" in row["stays"] for row in rows)


def test_losses_are_read_again_only_after_new_steps(store: MarkedStore) -> None:
    table, read = RunTable(store), []
    scalars = store.scalars

    def counted(run: str, *others: object) -> object:
        read.append(run)
        return scalars(run, *others)  # type: ignore[arg-type]

    store.scalars = counted  # type: ignore[assignment, method-assign]
    table.rows(), table.rows()
    assert sorted(read) == ["run-a", "run-b"]
    page_runs.fill(store, steps=range(300, 310), run="run-a")
    assert table.rows()[1]["step"] == 309
    assert sorted(read) == ["run-a", "run-a", "run-b"]


def test_rows_of_named_runs_come_alone_and_the_answer_counts_all(
    store: MarkedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = RunTable(store)
    some = rows_view(table, {"runs": ["run-a", "nothing"], "mark": 1})
    assert ([row["run"] for row in some["rows"]], some["is_whole"]) == (["run-a"], False)
    whole = rows_view(table, {"runs": None})
    assert (len(whole["rows"]), whole["is_whole"], whole["total"]) == (2, True, 2)
    monkeypatch.setattr(run_table, "_MAX_RUNS", 1)
    cut = rows_view(table, {"runs": None})
    assert (len(cut["rows"]), cut["total"]) == (1, 2)
    assert rows_view(table, {"runs": "run-a"}) is rows_view(table, None) is no_update


def test_names_come_at_once_where_numbers_take_longer(store: MarkedStore) -> None:
    now = iter([0.0, 0.0, 9.0, *[10.0] * 9])
    table = RunTable(store, clock=lambda: next(now))
    first, second = table.rows()
    assert first["is_read"] and not second["is_read"] and second["best"] is None
    assert all(row["is_read"] for row in table.rows())


def test_star_and_note_are_kept(store: MarkedStore, tmp_path: Path) -> None:
    (tmp_path / "run-a").mkdir()
    assert act(store, "run-a", "star", spool=tmp_path) == {
        "run": "run-a",
        "act": "star",
        "problem": "",
        "mark": 3,
    }
    assert (tmp_path / "run-a" / "starred").exists() and store.run_marks["run-a"].starred
    act(store, "run-a", "note", "  warm-up 4k ")
    assert store.run_marks["run-a"] == RunMark(note="warm-up 4k", starred=True)
    act(store, "run-a", "unstar", spool=tmp_path)
    assert not (tmp_path / "run-a" / "starred").exists() and not store.run_marks["run-a"].starred


def test_run_that_is_written_or_kept_is_not_deleted(store: MarkedStore) -> None:
    assert "still being written" in str(act(store, "run-a", "delete")["problem"])
    store.mark_run("run-b", starred=True)
    assert "starred" in str(act(store, "run-b", "delete")["problem"])
    assert store.removed == []
    store.mark_run("run-b", starred=False)
    assert act(store, "run-b", "delete")["problem"] == ""
    assert store.removed == ["run-b"]


@pytest.mark.parametrize(
    "data",
    [
        None,
        3,
        {"run": "run-a"},
        {"run": "run-a", "act": "drop"},
        {"run": "r", "act": "note", "value": "x" * 4001},
    ],
)
def test_malformed_action_changes_nothing(store: MarkedStore, data: object) -> None:
    assert run_action(store, data, spool=None, changed=lambda: None) is no_update
    assert store.run_marks == {} and store.removed == []


def test_action_on_a_run_that_is_gone_is_said(store: MarkedStore) -> None:
    for what in ("star", "note", "delete"):
        assert act(store, "nothing", what)["problem"] == "The run no longer exists."
    assert store.run_marks == {}


def test_two_runs_say_where_they_part_and_what_they_were_started_with(store: MarkedStore) -> None:
    store.rates["run-b"] = "<script>0.2"
    said = repr(comparison_view(store, {"runs": ["run-a", "run-b"]}))
    assert "They differ from step 250; the 250 steps before it are equal." in said
    assert "First layer in backward order: `blocks.2.norm1`" in said and "NaN" in said
    assert "<script>0.2" in said and "Configuration" in said
    assert "data-show-step='250'" in said


def test_more_runs_are_compared_by_their_facts_alone(store: MarkedStore) -> None:
    page_runs.fill(store, steps=range(3), run="run-c")
    said = repr(comparison_view(store, {"runs": ["run-c", "run-a", "run-b"]}))
    assert "Where they differ" not in said and "Both were started with the same settings." in said


@pytest.mark.parametrize("runs", [[], ["run-a"], ["run-a", "nothing"], ["run-a", "run-a"]])
def test_fewer_than_two_runs_are_no_comparison(store: MarkedStore, runs: list[str]) -> None:
    assert comparison_view(store, {"runs": runs}) == []
    assert overlay_lines(store, {"runs": runs}) == {}


@pytest.mark.parametrize("data", [None, {}, {"runs": ["x"] * (MOST_COMPARED + 1)}, {"runs": [1]}])
def test_malformed_comparison_changes_nothing(store: MarkedStore, data: object) -> None:
    assert comparison_view(store, data) is no_update
    assert overlay_lines(store, data) is no_update


def test_overlay_has_a_line_a_run_in_the_order_of_the_ticks(store: MarkedStore) -> None:
    page_runs.fill(store, steps=range(3), run="run-c", name="<b>%{x}</b>", bad={1: "nan"})
    one, other = overlay_lines(store, {"runs": ["run-c", "run-a"]})["lines"]
    assert (one["label"], other["label"]) == ("<b>%{x}</b> \u00b7 run-c", "train.py \u00b7 run-a")
    stored = store.scalars("run-c", 0, ["loss"])
    assert one["x"] == [0.0, 1.0, 2.0]
    assert one["y"] == [float(stored["mean"].iloc[0]), None, float(stored["mean"].iloc[2])]
