"""What a running training can be asked for besides its level, each with its answer beside it.

Preset, switches, limit, pause, snapshots. Pure: facts of the run in, components and texts out.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import dash_mantine_components as dmc
from dash import dcc, html
from dash.development.base_component import Component

from probe.delivery.control.control_messages import TrainerState
from probe.settings.levels import FEATURES, LABELS, LEVEL_FEATURES, LEVELS, PRESETS, Settings

from ... import ids
from .run_actions import ENDED

FEATURE: Final = "control-feature"
"""Type in the id of a switch; its name is that of the feature."""
NO_PRESET: Final = "none"
ACTS: Final[Mapping[str, str]] = {
    "preset": "Set the preset",
    "limit": "Set the limit",
    "record": "Pause recording",
    "pause": "Pause training",
    "resume": "Resume training",
    "snapshot": "Save the next step's statistics",
    "bundle": "Write a replay bundle",
    "memory_snapshot": "Take a memory snapshot",
}
"""Button -> what it says. None is called as a feature: both are names of what was clicked."""
NEEDS_STEPS: Final = ("pause", "snapshot", "bundle")
"""What waits for a step that is followed."""
AT_OFF: Final = "Level `off` records no steps: set another level first."
_NOTES: Final[Mapping[str, str]] = {
    "record": "Training continues, nothing is measured (same as level `off`).",
    "pause": "Before its next update, until someone resumes it.",
    "resume": "",
    "snapshot": "All parameters, as JSON, in the run's folder.",
    "bundle": "Of the next step; `dashboard replay` runs it again.",
    "memory_snapshot": "Process, machine and CUDA, now; shown under Memory.",
    "preset": "",
    "limit": "",
}


def act_id(act: str) -> str:
    """Return the id of a button."""
    return f"control-{act}"


def said_id(act: str) -> str:
    """Return the id of what is said beside it."""
    return f"control-{act}-said"


def controls_section() -> Component:
    """Return the section; its callback fills in what the shown run allows."""
    return html.Details(
        [
            html.Summary("Recording and training"),
            html.Div(
                [
                    html.P("", id=ids.CONTROLS_REASON, className="ns-small", role="status"),
                    html.Div(
                        [
                            _form("preset", _preset_choice()),
                            _form("limit", _limit_field()),
                            *(_row(act) for act in ACTS if act not in ("preset", "limit")),
                        ],
                        className="ns-controls",
                    ),
                    html.Details(
                        [
                            html.Summary("What is measured"),
                            html.Div(id=ids.CONTROLS_FEATURES, className="ns-switches"),
                        ],
                        open=True,
                        className="ns-controls-fold",
                    ),
                ],
                className="ns-card ns-watchpoints",
            ),
            dcc.Store(id=ids.CONTROLS_STATE),
        ],
        id="run-controls",
        open=True,
        className="ns-logged",
    )


def controls_reason(state: str | None) -> str:
    """Return why nothing can be asked of a run; empty where its trainers can be asked.

    Args:
        state: of the run; None where none is shown.
    """
    if state is None:
        return "No run is shown."
    return f"{ENDED[state]}, so these controls are off." if state in ENDED else ""


def state_text(state: TrainerState) -> str:
    """Say what a training is asked for now."""
    preset = f" with preset {state.preset}" if state.preset else ""
    paused = ""
    if state.is_paused:
        paused = " The training is paused" + ("." if state.step is None else f" at step {state.step:,}.")
    limit = limit_text(state.overhead_limit)
    return f"Level {state.level}{preset}, overhead limit {limit}.{paused}"


def limit_text(fraction: float) -> str:
    """Return an overhead limit for a sentence."""
    return f"{fraction * 100:g} % of a step" if fraction else "none"


def period_when_on(name: str, *, level: str, preset: str | None) -> int | None:
    """Return what turns a switch on: None is what level and preset have, else the period of `extreme`.

    Args:
        name: of the feature.
        level: of the training.
        preset: of the training.
    """
    if level in LEVELS and (preset is None or preset in PRESETS):
        chosen = next(one for one in LEVELS if one == level)
        if Settings(level=chosen, preset=preset).features.periods()[name]:
            return None
    return LEVEL_FEATURES["extreme"].periods()[name]


def feature_switches(state: TrainerState | None, said: Mapping[str, str], *, is_off: bool) -> list[Component]:
    """Return a switch for each thing that can be measured, with its period and the training's answer.

    Args:
        state: of the trainer; None where nobody answers.
        said: feature -> what is said beside it.
        is_off: nothing can be asked.
    """
    if state is None or not state.features:
        old = "The training's probe is too old to report what it measures."
        text = "Known while the training runs." if state is None else old
        return [html.P(text, className="ns-small")]
    note = [
        html.P(
            "At level `off` nothing is measured; the switches apply from the next level on.",
            className="ns-small",
        )
    ]
    known = [name for name in FEATURES if name in state.features]
    rows = [_switch(name, state.features[name], said.get(name, ""), is_off=is_off) for name in known]
    return [*(note if state.level == "off" else []), *rows]


def _switch(name: str, period: int, said: str, *, is_off: bool) -> Component:
    button = html.Button(
        "on" if period else "off",
        id={"type": FEATURE, "name": name},
        className="ns-switch",
        role="switch",
        n_clicks=0,
        disabled=is_off,
        **{"aria-checked": "true" if period else "false", "aria-label": LABELS[name]},
    )
    return html.Div(
        [
            button,
            html.Span(LABELS[name], className="ns-switch-name"),
            html.Span(_every(period), className="ns-small"),
            html.Span(said, className="ns-small ns-answer", role="status"),
        ],
        className="ns-switch-row",
    )


def _every(period: int) -> str:
    if period <= 1:
        return "every step" if period else "never"
    return f"every {period:,} steps"


def _preset_choice() -> Component:
    presets = [{"value": name, "label": f"{name}: {one.purpose}"} for name, one in PRESETS.items()]
    return dmc.Select(
        id=ids.PRESET_CHOICE,
        label="Preset",
        data=[{"value": NO_PRESET, "label": "none: the level's own switches"}, *presets],
        value=NO_PRESET,
        allowDeselect=False,
        size="xs",
        withScrollArea=False,
        disabled=True,
    )


def _limit_field() -> Component:
    return dmc.NumberInput(
        id=ids.LIMIT_VALUE,
        label="Overhead limit, % of a step",
        placeholder="as the level has it",
        value="",
        min=0,
        max=100,
        decimalScale=3,
        size="xs",
        disabled=True,
    )


def _form(act: str, field: Component) -> Component:
    """A field with its button, and the answer below."""
    return html.Div(
        [html.Div([field, _button(act)], className="ns-watchpoint-form"), _said(act)],
        className="ns-control ns-control-form",
    )


def _row(act: str) -> Component:
    texts = [html.Span(_NOTES[act], className="ns-small"), _said(act)]
    return html.Div([_button(act), html.Div(texts, className="ns-control-texts")], className="ns-control")


def _button(act: str) -> Component:
    return html.Button(ACTS[act], id=act_id(act), className="ns-button", n_clicks=0, disabled=True)


def _said(act: str) -> Component:
    return html.Span("", id=said_id(act), className="ns-small ns-answer", role="status")
