"""Ids of the page's elements that Python and the scripts in `assets/` both name. Constants only."""

from __future__ import annotations

from typing import Final

PROVIDER: Final = "provider"
TEMPLATES: Final = "templates"
"""Store: figure layouts and trace styles of both themes, for the scripts."""
BOOTED: Final = "booted"

RUN_SELECT: Final = "run-select"
RANK_SELECT: Final = "rank-select"
WINDOW_SELECT: Final = "window-select"
LIVE_BUTTON: Final = "live-button"
RESET_BUTTON: Final = "reset-button"
CONNECTION: Final = "connection"
THEME_MENU: Final = "theme-menu"
EXPORT_MENU: Final = "export-menu"

EVENTS_SCOPE: Final = "events-scope"
"""Store: which events to draw, {run, rank, theme, event, first, end, mark}; written by the scripts."""
SELECTION: Final = "selection"
"""Store: the open event, {run, event, mark}; written by the scripts."""
EVENT_ROWS_SCOPE: Final = "event-rows-scope"
"""Store: what the page has of the table's rows, {run, epoch, low, high, mark}; written by the scripts."""
EVENT_ROWS: Final = "event-rows"
"""Store: the next part of them, see `callbacks.events.rows_part`."""
TIMELINE_FIGURE: Final = "timeline-figure"
EVENT_TABLE: Final = "event-table"
KEY_SHEET: Final = "key-sheet"
KEY_SHEET_CLOSE: Final = "key-sheet-close"
EVENT_PANEL: Final = "event-content"
EVENT_ASIDE: Final = "event-aside"

ROW_SCOPE: Final = "row-scope"
"""Store: whose histograms to show, {run, rank, row, theme, first, end, mark}; written by the scripts."""
ROW_NAMES: Final = "row-names"
"""Store: whose names the selector lists, {run, rank, mark}; written by the scripts."""
ROW_FIGURE: Final = "row-figure"
ROW_ASIDE: Final = "row-aside"
ROW_SELECT: Final = "row-select"
ROW_HEAD: Final = "row-head"
ROW_TABLES: Final = "row-tables"

DOCUMENTS_SCOPE: Final = "documents-scope"
"""Store: whose snapshots and profiles to show, {run, rank, mark}; written by the scripts."""
DOCUMENTS: Final = "documents"

WATCHPOINT_SUMMARY: Final = "watchpoint-summary"
WATCHPOINT_COUNT: Final = "watchpoint-count"
WATCHPOINT_LIST: Final = "watchpoint-list"
WATCHPOINT_CONDITION: Final = "watchpoint-condition"
WATCHPOINT_ACTION: Final = "watchpoint-action"
WATCHPOINT_ADD: Final = "watchpoint-add"
WATCHPOINT_RESUME: Final = "watchpoint-resume"

PROFILE_STEPS: Final = "profile-steps"
PROFILE_ASK: Final = "profile-ask"
PROFILE_SAID: Final = "profile-said"

EMPTY_STATE: Final = "empty-state"
CHARTS: Final = "charts"
