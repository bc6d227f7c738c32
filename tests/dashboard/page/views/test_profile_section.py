"""The section of profiles: what is shown of a document, as text, and one that does not decode."""

from __future__ import annotations

import msgspec

from dashboard.page.views.profile_section import profile_content, profile_form
from dashboard.store.protocol import StoredDocument
from probe.wire import Document
from probe.wire.documents import make_document
from probe.wire.profiles import OpRow, PlaceRow, ProfileBody, ProfileFinding

OP = OpRow(
    name="aten::<script>",
    calls=6,
    self_cpu_s=0.5,
    cpu_s=0.75,
    self_cuda_s=0.0,
    allocated_bytes=2048,
    module="",
)
PLACE = PlaceRow(
    name="train.py:7", calls=6, self_cpu_s=0.5, backward_cpu_s=0.25, self_cuda_s=0.0, allocated_bytes=0
)
BODY = ProfileBody(
    first_step=5,
    steps=3,
    asked_steps=3,
    asked_by="the page",
    wall_s=1.5,
    cpu_s=1.0,
    cuda_s=0.0,
    has_cuda=False,
    own_s=0.0,
    input_wait_s=0.0,
    ops=[OP],
    lines=[PLACE],
    findings=[ProfileFinding(kind="copies", message="Copies take 40%", value=0.4, threshold=0.15)],
    trace="5.json.gz",
    trace_bytes=4096,
)


def stored(document: Document) -> StoredDocument:
    return StoredDocument(run="my run", rank=0, incarnation=1, document=document)


def shown(*bodies: ProfileBody) -> str:
    documents = [
        stored(make_document(body, kind="profile", key=f"k/{at}", step=7, time=float(at)))
        for at, body in enumerate(bodies)
    ]
    return str(profile_content(documents).to_plotly_json())


def test_profile_shows_findings_times_and_link() -> None:
    text = shown(BODY)
    assert "Steps 5 to 7, 500 ms per step while profiled" in text
    assert "Copies take 40%" in text and "Copies and conversions" in text
    assert "aten::<script>" in text and "750 ms" in text and "2 KiB" in text and "train.py:7" in text
    assert "/api/v1/runs/my%20run/profiles/k%2F0/trace" in text and "4 KiB" in text


def test_newest_profile_is_open_and_first() -> None:
    later = msgspec.structs.replace(BODY, first_step=90, steps=1)
    text = shown(BODY, later)
    assert text.index("Step 90, ") < text.index("Steps 5 to 7")
    opened = [
        one.open
        for one in profile_content(
            [
                stored(make_document(b, kind="profile", key=str(t), step=1, time=t))
                for t, b in ((1.0, BODY), (2.0, later))
            ]
        ).children
    ]
    assert opened == [True, False]


def test_profile_without_a_trace_has_no_link_and_none_without_findings() -> None:
    text = shown(msgspec.structs.replace(BODY, trace=None, findings=[], notes=["No room."]))
    assert "/trace" not in text and "Nothing unusual." in text and "No room." in text


def test_gpu_columns_are_there_only_with_a_gpu() -> None:
    assert "Self CUDA" not in shown(BODY)
    text = shown(msgspec.structs.replace(BODY, has_cuda=True, cuda_s=0.75))
    assert "Self CUDA" in text and "GPU busy 50 %" in text


def test_document_that_does_not_decode_is_named() -> None:
    broken = Document(kind="profile", key="<b>", step=1, time=0.0, body=b"{")
    assert "Profile <b> cannot be read" in str(profile_content([stored(broken)]).to_plotly_json())


def test_form_offers_a_number_of_steps() -> None:
    assert "profile-steps" in str(profile_form().to_plotly_json())
