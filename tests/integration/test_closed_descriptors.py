"""A script that closes all descriptors, then opens files: none of their bytes is ours, nothing is lost."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from forked_scripts import ForkedScripts

from probe.delivery.journal.journal_reader import read_stream
from probe.wire import Event, Frame, RunEnd, decode_record

SCRIPT = Path(__file__).parent / "scripts" / "closes_descriptors.py"


@pytest.mark.parametrize(
    "environment",
    [{"NANSCOPE_CONNECT": ""}, {"UNMAPPED": "1", "NANSCOPE_CONNECT": "tcp://127.0.0.1:9"}],
    ids=["mapped", "pwrite, with a helper"],
)
def test_script_that_closes_descriptors_keeps_its_files_and_its_record(
    forked: ForkedScripts, tmp_path: Path, environment: dict[str, str]
) -> None:
    spool, said = tmp_path / "spool", tmp_path / "said"
    code, _, _ = forked.start([str(SCRIPT), str(spool), str(said)], tmp_path, environment).finish()
    assert code == 0
    while_training, afterwards = json.loads(said.read_text())
    assert len(while_training) >= 2 and min(map(int, while_training)) >= 64
    assert not [target for target in afterwards.values() if target.startswith(str(spool))]
    assert {path.read_bytes() for path in tmp_path.glob("said-*")} == {b"U" * 1000}
    (writer,) = (spool / "closes").glob("0-*")
    frames = [decode_record(data) for _, data in read_stream(writer, "metrics")]
    assert {frame.step for frame in frames if isinstance(frame, Frame)} == set(range(700))
    events = [decode_record(data) for _, data in read_stream(writer, "events")]
    told = [event.message for event in events if isinstance(event, Event) and event.kind == "data_gap"]
    assert told and "The script closed" in told[0]
    ends = [record for record in events if isinstance(record, RunEnd)]
    assert [(end.outcome, end.lost_before_write) for end in ends] == [("finished", 0)]
