"""What the page of interfaces says of tracked tensors, against the structs."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec

from probe.wire.tracked_tensors import MOST, TensorRow, TrackedBody

PAGE = Path(__file__).resolve().parents[3] / "docs" / "interfaces.md"


def test_page_names_every_field_of_tracked_tensors() -> None:
    text = PAGE.read_text(encoding="utf-8").partition("Kind `tracked_tensors`")[2].partition("\n- ")[0]
    fields = [field.name for struct in (TrackedBody, TensorRow) for field in msgspec.structs.fields(struct)]
    assert set(re.findall(r"`(\w+)`", text)) == set(fields)
    assert f"the {MOST} largest" in text
