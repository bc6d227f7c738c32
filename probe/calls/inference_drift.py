"""What a watched model is called with outside of its training, and returns, beside what training showed.

Used by `safe_inference`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from torch import Tensor, nn

from ..attach.layout import unwrap
from ..compat.weak_tables import WeakTable
from ..detectors.base import Finding
from ..detectors.cause_advice import DRIFTED
from ..detectors.training_values import OUTPUT, Drift, TrainingValues, values_of_input
from ..guard import Guard
from ..measure.input_sample import measure_inputs, measured_tensors
from ..session import Probe
from .attempts import tell

_THE_OUTPUT: Final = "The output"
_told: WeakTable[Probe, set[str]] = WeakTable()
"""What is off by now, of each session: said once, and again after it was as in training."""
_guard: Final = Guard()


def drift_of_call(
    session: Probe | None, model: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any], output: Any
) -> tuple[str, ...]:
    """Return in one sentence each what is far from what training showed; each is an event of the session.

    Reads floating-point tensors on the CPU alone: a device would have to be waited for.
    """
    seen = None if session is None else session.training_values
    if session is None or seen is None:
        return ()
    told = _guard.run("drift of calls", _note_call, session, seen, unwrap(model), args, kwargs, output)
    return told or ()


def _note_call(
    session: Probe,
    seen: TrainingValues,
    called: nn.Module,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    output: Any,
) -> tuple[str, ...]:
    found = {f"Input `{name}`": (name, drift) for name, drift in _drifts(seen, called, args, kwargs)}
    if isinstance(output, Tensor) and not found:
        # Of several tensors the samples of the training give one number; inputs that are off explain it.
        for _, drift in _drifts(seen, called, (), {OUTPUT: output}):
            found[_THE_OUTPUT] = OUTPUT, drift
    told = _told.setdefault(session, set())
    begin = "has drifted from what training showed"
    sentences = {what: f"{what} {begin}: {drift.text}" for what, (_, drift) in found.items()}
    for what in [what for what in found if what not in told]:
        name, drift = found[what]
        kind = "output_degenerate" if what == _THE_OUTPUT else "input_out_of_range"
        _tell(session, kind, name, sentences[what], drift)
    told.clear()
    told.update(found)
    return tuple(sentences.values())


def _drifts(
    seen: TrainingValues, called: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Iterator[tuple[str, Drift]]:
    inputs = measure_inputs(called, tuple(args), kwargs)
    if inputs is None:
        return
    for index, tensor in enumerate(measured_tensors(called, tuple(args), kwargs).values()):
        name, values = inputs.names[index], values_of_input(inputs, index)
        rows = tensor.shape[0] if tensor.ndim else 1
        if values is not None and (drift := seen.drift(name, values, rows)) is not None:
            yield name, drift


def _tell(session: Probe, kind: str, name: str, sentence: str, drift: Drift) -> None:
    finding = Finding(
        kind=kind,
        severity="warning",
        subject=f"drift: {name}",
        message=f"{sentence} (safe_inference)",
        value=drift.value,
        threshold=drift.threshold,
        advice=DRIFTED,
    )
    tell(session, finding)
