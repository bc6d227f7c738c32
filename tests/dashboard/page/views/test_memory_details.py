"""What stands below the charts of memory: growth, the lines that feed it, two snapshots, tracked tensors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np
import page_runs
import pandas as pd
import pytest
from dash.development.base_component import Component

from dashboard.page.views.memory_comparison import Moment, comparison
from dashboard.page.views.memory_details import MemoryFacts, memory_details, snapshot_choices
from dashboard.page.views.memory_growth import feeds_table, growth_sentences, per_steps_text, place_of
from dashboard.page.views.tracked_table import tracked_table
from dashboard.store.protocol import StoredDocument
from probe.wire import Document, Event, Evidence, StackFrame, Stacks
from probe.wire.documents import make_document
from probe.wire.memory_snapshots import MEMORY_SNAPSHOT, CudaMemory, MemorySnapshot
from probe.wire.tracked_tensors import KIND, TensorRow, TrackedBody

MIB = 2**20


def texts(part: Any) -> Iterator[str]:
    if isinstance(part, str):
        yield part
    elif isinstance(part, Component):
        yield from texts(getattr(part, "children", None))
    elif isinstance(part, list | tuple):
        for one in part:
            yield from texts(one)


def cells(part: Any) -> list[list[str]]:
    """Each row of all tables as the texts of its cells."""
    parts = part if isinstance(part, list) else [part]
    rows = [one for each in parts for one in each._traverse() if type(one).__name__ == "Tr"]
    return [["".join(texts(cell)) for cell in row.children] for row in rows]


def series(values: Any, *, name: str = "process_rss_bytes", every: int = 10) -> pd.DataFrame:
    values = np.asarray(values, dtype=np.float64)
    count = len(values)
    made = {"name": name, "step": every * np.arange(count), "mean": values, "pooled": 1}
    return pd.DataFrame(made)


def leak(step: int = 50, **changes: Any) -> Event:
    """A leak of 0.8 MiB a step that `train.py:148` feeds."""
    message = "Memory leak: `history` grows\nMemory grows.\nIt has 12 items.\nKeep `.item()` of it."
    event = page_runs.event(step, kind="memory_leak", subject="history", message=message)
    lines = [
        StackFrame(file="/home/ann/main.py", line=3, function="<module>"),
        StackFrame(file="/home/ann/train.py", line=148, function="train"),
    ]
    numbers = {"items": 12.0, "items_per_step": 1.0}
    found = {
        "evidence": Evidence(value=0.8 * MIB, baseline=numbers),
        "stacks": Stacks(training_loop=lines),
    }
    return msgspec.structs.replace(event, **found | changes)


# -- growth


def test_growth_is_told_per_thousand_steps() -> None:
    values = 1e9 + 0.8 * MIB * 10 * np.arange(100)
    (said,) = growth_sentences(series(values))
    assert said.startswith(
        "The process grows by +800 MiB per 1,000 steps (95 % interval +800 MiB to +800 MiB"
    )
    assert "99 readings over 980 steps" in said and said.endswith("newest quarter of them: +800 MiB.")


def test_growth_says_how_long_free_memory_lasts_at_the_newest_pace() -> None:
    values = 1e9 + MIB * 10 * np.concatenate([np.zeros(75), np.arange(75)])
    (said,) = growth_sentences(series(values), free_bytes=1000 * MIB)
    assert said.endswith("free memory (1000 MiB) will run out in about 1,000 steps.")


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("mib", [5, 100])
def test_scatter_is_no_growth(seed: int, mib: float) -> None:
    values = 3e9 + mib * MIB * np.random.default_rng(seed).standard_normal(200)
    (said,) = growth_sentences(series(values))
    assert said.startswith("The process: no growth within the noise (")


def test_a_start_that_fills_up_and_stays_is_no_growth() -> None:
    values = 1e9 + np.minimum(np.arange(200), 20) * 10 * MIB
    (said,) = growth_sentences(series(values + np.random.default_rng(0).standard_normal(200) * MIB))
    assert "no growth" in said


def test_slow_growth_of_few_bytes_is_no_growth() -> None:
    (said,) = growth_sentences(series(1e9 + 10.0 * np.arange(200)))
    assert "no growth within the noise (+1000 B per 1,000 steps" in said


def test_too_few_readings_say_nothing_and_cuda_has_a_sentence_of_its_own() -> None:
    data = pd.concat([series([1e9] * 3), series([1e9] * 50, name="cuda_allocated_bytes")])
    (said,) = growth_sentences(data)
    assert said.startswith("CUDA memory of tensors: no growth")


@pytest.mark.parametrize(
    ("a_step", "text"),
    [(0.0, "+0 B"), (-1024.0, "\u22121000 KiB"), (858993.4592, "+819 MiB"), (1.0, "+1000 B")],
)
def test_pace_has_three_digits_and_a_sign(a_step: float, text: str) -> None:
    assert per_steps_text(a_step) == text


# -- lines


def test_leaks_have_their_line_items_and_pace() -> None:
    shown = feeds_table([leak(), leak(60, subject="cache", evidence=Evidence(baseline={"items": 5.0}))])
    assert cells(shown) == [
        ["Line", "What grows", "Items", "A step", "Per 1,000 steps", "Found at step"],
        ["train.py:148", "history", "12", "1", "+800 MiB", "50"],
        ["train.py:148", "cache", "5", "-", "-", "60"],
    ]
    assert list(texts(shown))[-3:] == ["Keep ", ".item()", " of it."]


def test_growth_that_no_container_explains_has_no_line() -> None:
    event = leak(subject="process", evidence=Evidence(value=1.0, baseline={"bytes": 5.0}))
    assert place_of(event) == ""
    assert cells(feeds_table([event]))[1][:2] == ["line not known", "process"]
    assert feeds_table([]) == []


# -- snapshots


def snapshot(step: int | None, **fields: Any) -> MemorySnapshot:
    made = {"label": "", "cause": "call", "time": 100.0 + (step or 0), "step": step, "rss_bytes": 100 * MIB}
    return MemorySnapshot(**made | fields)


def test_comparison_has_kinds_sizes_and_what_a_line_has_fed() -> None:
    cuda = CudaMemory(
        device=0, allocated_bytes=60 * MIB, reserved_bytes=100 * MIB, peak_allocated_bytes=0,
        peak_reserved_bytes=0, total_bytes=0, retries=0, ooms=0, segments=0,
    )  # fmt: skip
    before, after = snapshot(100), snapshot(1100, rss_bytes=250 * MIB, cuda=(cuda,))
    kinds = {"memory_parameters_bytes": 10.0 * MIB, "memory_other_bytes": 90.0 * MIB}
    shown = comparison(
        [("a", before), ("b", after)],
        Moment("a", before, kinds),
        Moment("b", after, kinds | {"memory_other_bytes": 240.0 * MIB}),
        leaks=[leak(500)],
    )
    assert cells(shown) == [
        ["", "At step 100", "At step 1,100", "Change"],
        ["parameters", "10 MiB", "10 MiB", "0"],
        ["other", "90 MiB", "240 MiB", "+150 MiB"],
        ["process", "100 MiB", "250 MiB", "+150 MiB"],
        ["CUDA allocated", "-", "60 MiB", "-"],
        ["CUDA reserved", "-", "100 MiB", "-"],
        ["CUDA reserved, in no tensor", "-", "40 MiB", "-"],
    ]
    assert "".join(texts(shown)).endswith("train.py:148 feeds history: about 800 MiB between them.")


def test_leak_found_after_the_second_snapshot_has_fed_nothing() -> None:
    moments = [Moment(id_, snapshot(step), {}) for id_, step in (("a", 1), ("b", 20))]
    choices = [(one.id, one.snapshot) for one in moments]
    assert "feeds" not in "".join(texts(comparison(choices, *moments, leaks=[leak(50)])))


def stored(document: Document, incarnation: int = 1) -> StoredDocument:
    return StoredDocument(run="a", rank=0, incarnation=incarnation, document=document)


def test_choices_are_those_of_the_newest_start_that_decode() -> None:
    def kept(step: int, incarnation: int) -> StoredDocument:
        body = snapshot(step)
        made = make_document(body, kind=MEMORY_SNAPSHOT, key=f"s{step}", step=step, time=body.time)
        return stored(made, incarnation)

    broken = stored(Document(kind=MEMORY_SNAPSHOT, key="x", time=1.0, body=b"[]"), 2)
    choices = snapshot_choices([kept(9, 1), kept(30, 2), broken, kept(10, 2)])
    assert [(id_, one.step) for id_, one in choices] == [("2/s10", 10), ("2/s30", 30)]


# -- tracked tensors


def test_tracked_tensors_have_shape_size_and_how_long_they_live() -> None:
    rows = (
        TensorRow(
            name="<b>logits</b>", dtype="bfloat16", shape=(8, 9), device="cuda:0", bytes=144, since=0.0
        ),
        TensorRow(name="", dtype="float32", shape=(), device="cpu", bytes=4, since=10.0, freed=12.5),
    )
    body = TrackedBody(tensors=rows, alive=1, alive_bytes=144, tracked=7)
    shown = tracked_table([stored(make_document(body, kind=KIND, key="", step=3, time=90.0))])
    assert cells(shown) == [
        ["Tensor", "Type, shape", "Size", "Lives for"],
        ["<b>logits</b>", "bfloat16 8\u00d79 cuda:0", "144 B", "1 min 30 s"],
        ["without a name", "float32 scalar cpu", "4 B", "freed after 2.5 s"],
    ]
    assert next(texts(shown)) == "1 of 7 live, 144 B; 5 more are not listed."
    hover = [one.title for part in shown for one in part._traverse() if getattr(one, "title", None)]
    assert "Tracked since 1970-01-01 00:00:10 UTC, freed 1970-01-01 00:00:12 UTC" in hover


def test_tracked_tensors_that_cannot_be_read_are_named_as_such() -> None:
    (said,) = tracked_table([stored(Document(kind=KIND, key="", time=1.0, body=b"[]"))])
    assert "cannot be read" in "".join(texts(said))
    assert tracked_table([]) == []


# -- together


def facts(**changes: Any) -> MemoryFacts:
    nothing: dict[str, Any] = {
        "series": series([]), "free_bytes": None, "leaks": [], "choices": [], "moments": None, "tracked": [],
    }  # fmt: skip
    return MemoryFacts(**nothing | changes)


def test_run_without_memory_has_nothing_and_else_each_section_says_how_to_get_its_data() -> None:
    assert memory_details(facts()) == []
    said = "".join(texts(memory_details(facts(series=series([1e9])))))
    for part in (
        "Too few readings",
        "No leak found.",
        'run.take_memory_snapshot("label")',
        'probe.track_tensor(tensor, "name")',
    ):
        assert part in said


def test_of_very_many_snapshots_a_spread_is_offered_and_those_that_are_chosen() -> None:
    choices = [(str(at), snapshot(at)) for at in range(301)]
    moments = [Moment(str(at), choices[at][1], {}) for at in (7, 300)]
    shown = comparison(choices, *moments)
    first = next(one for one in shown._traverse() if type(one).__name__ == "Select")
    offered = [int(option.value) for option in first.children]
    assert offered == sorted(offered) and {0, 7, 300} <= set(offered) and 24 <= len(offered) <= 26
