"""The account of what was written and stored, in words and numbers; what the doctor found."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from dash.development.base_component import Component

from dashboard.page.views.doctor_section import doctor_said, findings_table
from dashboard.page.views.system_account import (
    StreamAccount,
    SystemFacts,
    delivery_sentences,
    system_account,
)
from dashboard.page.views.system_panel import RETENTION
from dashboard.store import retention
from dashboard.store.pyramid import FACTOR
from probe.wire import RunStart
from probe.wire.findings import Finding, State


def texts(part: Any) -> Iterator[str]:
    if isinstance(part, str):
        yield part
    elif isinstance(part, Component):
        yield from texts(getattr(part, "children", None))
    elif isinstance(part, list | tuple):
        for one in part:
            yield from texts(one)


def cells(part: Any) -> list[list[str]]:
    parts = part if isinstance(part, list) else [part]
    rows = [one for each in parts for one in each._traverse() if type(one).__name__ == "Tr"]
    return [["".join(texts(cell)) for cell in row.children] for row in rows]


def stream(**changes: Any) -> StreamAccount:
    made = {"writer": "0-17", "stream": "metrics", "written": 100, "stored": 90, "gaps": 7, "dropped": 3}
    return StreamAccount(**made | changes)


def facts(*accounts: StreamAccount, **changes: Any) -> SystemFacts:
    made: dict[str, Any] = {
        "start": None, "now": 1000.0, "readings": {}, "accounts": accounts, "lost_before_write": 0,
        "throttled": "", "is_running": False, "helper_pid": None,
        "is_listened_to": False, "has_journal": True,
    }  # fmt: skip
    return SystemFacts(**made | changes)


@pytest.mark.parametrize(
    ("accounts", "is_running", "said"),
    [
        (
            [stream(), stream(stream="events", written=5, stored=5, gaps=0, dropped=0)],
            False,
            "105 records written: 95 stored + 7 in gaps + 3 dropped.",
        ),
        (
            [stream(written=90, gaps=0, dropped=0)],
            False,
            "All 90 records arrived.",
        ),
        (
            [stream(written=1104)],
            True,
            "1,104 records written: 90 stored + 7 in gaps + 3 dropped + 1,004 on their way.",
        ),
        (
            [stream(written=101)],
            False,
            "101 records written, 90 stored + 7 in gaps + 3 dropped: 1 record is not stored yet.",
        ),
        (
            [stream(written=98)],
            False,
            "98 records in the journal, 90 stored + 7 in gaps + 3 dropped: 2 records are stored here that "
            "it no longer has.",
        ),
        (
            [stream(written=None)],
            True,
            "100 records received = 90 stored + 7 in gaps + 3 dropped. The journal is not on this machine.",
        ),
        ([], True, "Nothing of this run has arrived yet."),
    ],
)
def test_balance_is_said_in_a_sentence(accounts: list[StreamAccount], is_running: bool, said: str) -> None:
    shown = facts(*accounts, is_running=is_running, has_journal=False)
    assert delivery_sentences(shown) == [said]


def test_helper_losses_and_failures_are_told() -> None:
    shown = facts(
        stream(), is_running=True, helper_pid=7, is_listened_to=True, lost_before_write=1,
        throttled="To keep to 2 % of a step, the probe measures activations every 400 steps",
        readings={"probe_failures": 2.0},
    )  # fmt: skip
    assert delivery_sentences(shown)[1:] == [
        "1 step was lost before being written (a full disk, for example).",
        "The helper of this run is process 7 on this machine; a dashboard receives its data.",
        "To keep to 2 % of a step, the probe measures activations every 400 steps.",
        "The probe's own code failed 2 times; the parts that failed are switched off.",
    ]
    assert "No helper of this run" in delivery_sentences(facts(stream(), is_running=True))[1]


def test_each_stream_has_a_row_and_each_reading_its_unit() -> None:
    readings = {
        "process_cpu_fraction": 0.25, "gpu_fraction": 0.9, "system_used_bytes": 2.0**30,
        "system_total_bytes": 2.0**32, "cuda_allocated_bytes": 3.0 * 2**30, "cuda_reserved_bytes": 2.0**32,
    }  # fmt: skip
    start = RunStart(
        run="a", rank=0, incarnation=1, host="<b>box", pid=5, time=940.0, versions={"torch": "2.13"}
    )
    shown = system_account(facts(stream(), stream(writer="host-<i>"), start=start, readings=readings))
    assert cells(shown) == [
        ["Runs on", "<b>box, process 5"],
        ["Started", "1 min 00 s ago"],
        ["Versions", "torch 2.13"],
        ["Processors, this process", "25 %"],
        ["GPU busy", "90 %"],
        ["Memory of the machine", "1 GiB of 4 GiB in use"],
        ["CUDA memory", "3 GiB in 4 GiB reserved, 25 % of it in no tensor"],
        ["Writer", "Stream", "Written", "Stored", "In gaps", "Dropped", "On their way"],
        ["rank 0", "metrics", "100", "90", "7", "3", "0"],
        ["helper on <i>", "metrics", "100", "90", "7", "3", "0"],
    ]
    hover = [one.title for part in shown for one in part._traverse() if getattr(one, "title", None)]
    assert "1970-01-01 00:15:40 UTC" in hover


def test_retention_is_told_as_the_store_has_it() -> None:
    for number in (retention.RAW_STEPS, retention.EVENT_STEPS, FACTOR):
        assert f" {number:,} " in RETENTION


def finding(state: State, name: str = "torch", advice: str = "") -> Finding:
    return Finding(name=name, state=state, found="2.13", advice=advice)


def test_findings_have_state_name_and_advice() -> None:
    shown = findings_table("Recording", [finding("ok"), finding("missing", "disk", "free space")])
    assert cells(shown) == [
        ["State", "Recording", "Found"],
        ["ok", "torch", "2.13"],
        ["missing", "disk", "2.13free space"],
    ]


@pytest.mark.parametrize(
    ("found", "said"),
    [
        ([finding("ok")], "Recording works; nothing to do."),
        (
            [finding("ok"), finding("limited", "kernel")],
            "Recording works. What is limited, and why, is listed above: kernel.",
        ),
        ([finding("missing", advice="install it")], "Nothing can be recorded here: torch: install it"),
    ],
)
def test_what_the_doctor_says_is_one_sentence(found: list[Finding], said: str) -> None:
    assert doctor_said(found) == said
