"""Events as a training process would write them, for the tests of views, exports and commands."""

from __future__ import annotations

from typing import Any

from probe.wire import Event, Evidence, Origin, StackFrame, Stacks, event_id

RUN = "run-a"
MODEL_CODE = """\
class Block(nn.Module):
    def forward(self, x):
        # scores before the softmax
        scale = math.log(0.5)
        y = torch.sqrt(x * scale)  # negative
        return self.norm(y + "text")
"""


def own_frame(**changes: Any) -> StackFrame:
    fields: dict[str, Any] = {
        "file": "/home/someone/project/model.py",
        "line": 26,
        "function": "forward",
        "code": MODEL_CODE,
        "code_first_line": 22,
    }
    return StackFrame(**{**fields, **changes})


def library_frame() -> StackFrame:
    return StackFrame(
        file="/venv/lib/python3.11/site-packages/torch/nn/modules/module.py",
        line=1775,
        function="_call_impl",
        code="return forward_call(*args, **kwargs)",
        code_first_line=1775,
    )


def nan_event(**changes: Any) -> Event:
    fields: dict[str, Any] = {
        "id": event_id(
            run=RUN,
            rank=0,
            incarnation=1,
            model="net",
            kind="nonfinite_gradient",
            subject="blocks.3",
            step=400,
        ),
        "run": RUN,
        "rank": 0,
        "incarnation": 1,
        "model": "net",
        "step": 400,
        "time": 1_700_000_072.0,
        "kind": "nonfinite_gradient",
        "severity": "critical",
        "subject": "blocks.3",
        "message": "NaN first at step 400 in `blocks.3`, model.py:26, forward\naten.sqrt made 12 NaN.",
        "evidence": Evidence(
            value=float("nan"),
            threshold=20.0,
            baseline={"median": 1.25, "mad": 0.1, "steps": 399.0},
            neighbours=[(398, 1.2), (399, 1.3)],
        ),
        "origin": Origin(phase="forward", op="aten.sqrt", module="blocks.3", stage="local"),
        "propagated_to": ["blocks.3.weight", "blocks.4.weight"],
        "stacks": Stacks(
            forward=[library_frame(), own_frame()],
            training_loop=[own_frame(file="/home/someone/project/train.py", line=23, function="main")],
        ),
        "advice": ["Clamp the input of sqrt."],
    }
    return Event(**{**fields, **changes})


def spike_event(step: int = 120, **changes: Any) -> Event:
    fields: dict[str, Any] = {
        "id": event_id(
            run=RUN, rank=0, incarnation=1, model="", kind="loss_spike", subject="loss", step=step
        ),
        "step": step,
        "kind": "loss_spike",
        "severity": "warning",
        "subject": "loss",
        "model": "",
        "message": f"Loss spiked to 9.5 at step {step}",
        "evidence": Evidence(value=9.5, threshold=3.0, baseline={"median": 2.0}),
        "origin": None,
        "propagated_to": [],
        "stacks": Stacks(),
        "advice": [],
    }
    return nan_event(**{**fields, **changes})
