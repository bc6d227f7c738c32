"""What the routes answer, as types: FastAPI checks answers against them and describes them in /openapi.json.

Missing is null. Numbers that are not finite are the strings "NaN", "Infinity" and "-Infinity".
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field

Number: TypeAlias = float | str | None
"""A finite number, the name of one that is not, or null."""


class Answer(BaseModel):
    """Base of all answers."""

    v: Literal[1] = 1


class ErrorFacts(BaseModel):
    """What is wrong."""

    code: str = Field(description="word that programs compare, such as not_found")
    message: str = Field(description="sentence that people read")


class ErrorAnswer(BaseModel):
    """What every refusal answers."""

    error: ErrorFacts


class RunRow(BaseModel):
    """One run, as a list shows it."""

    run: str
    name: str
    started: float = Field(description="UNIX seconds")
    written: float = Field(description="UNIX seconds of the newest step")
    state: str = Field(description="running, finished, exception, killed or silent")
    group: str = Field(description="the same for the models of one training")
    member: int | None = Field(
        description="which of the models that one run makes one after the other; null where there is one"
    )
    starred: bool
    note: str


class RunList(Answer):
    """A page of runs, newest first."""

    runs: list[RunRow]
    next_cursor: str | None = Field(
        description="what to pass as `cursor` for the next page; null on the last"
    )


class RankRow(BaseModel):
    """The newest incarnation of one rank."""

    rank: int
    incarnation: int
    state: str
    first_step: int | None
    last_step: int | None
    last_time: float | None
    lost_before_write: int


class RunDetail(RunRow):
    """One run."""

    v: Literal[1] = 1
    start: dict[str, Any] = Field(description="every field of the run's run.json")
    ranks: list[RankRow]
    event_counts: dict[str, int] = Field(description="events by severity")


class RankList(Answer):
    """Ranks of a run."""

    run: str
    ranks: list[RankRow]


class RunRemoved(Answer):
    """A run that is gone."""

    run: str


class RunsRemoved(Answer):
    """Runs that stay, with the reason."""

    refused: dict[str, str]


class RunMarked(Answer):
    """What a person has said of a run."""

    run: str
    note: str
    starred: bool


class LayerRow(BaseModel):
    """A module that directly owns trainable parameters."""

    name: str
    type: str


class ParameterRow(BaseModel):
    """One parameter."""

    name: str
    shape: list[int]
    dtype: str
    layer: int = Field(description="index into `layers`")


class Layers(Answer):
    """The model, in its own order."""

    run: str
    rank: int
    model: str
    layers: list[LayerRow]
    parameters: list[ParameterRow]
    modules: list[LayerRow] = Field(description="empty until statistics of modules are measured")


class SeriesName(BaseModel):
    """A series with one number per step."""

    name: str
    unit: str
    description: str


class SeriesNames(Answer):
    """What `series/values` can be asked for."""

    run: str
    rank: int
    series: list[SeriesName]


class SeriesColumns(BaseModel):
    """Equally long columns, one entry per point, which stands for `pooled` steps from `step` on.

    `min`, `mean` and `max` are over the finite values; `nan` and `inf` count the others.
    """

    unit: str
    description: str
    step: list[int]
    time: list[Number]
    min: list[Number]
    mean: list[Number]
    max: list[Number]
    nan: list[int]
    inf: list[int]
    pooled: list[int]


class SeriesValues(Answer):
    """Values of series, by name; a name that the run does not have is not there."""

    run: str
    rank: int
    series: dict[str, SeriesColumns]


class StatisticNames(Answer):
    """What `heatmap` can be asked for."""

    run: str
    rank: int
    statistics: list[str]


class HeatmapAnswer(Answer):
    """Rows (layers or modules) by columns (steps); a cell is the largest finite value of its steps.

    `flags`: bit 0 measured, bit 1 some step was NaN, bit 2 some step was Inf.
    """

    run: str
    rank: int
    statistic: str
    rows: list[str]
    row_kinds: list[str]
    steps: list[int]
    steps_per_column: int
    values: list[list[Number]]
    flags: list[list[int]]


class EventModel(BaseModel):
    """One event, see docs/interfaces.md."""

    model_config = ConfigDict(extra="allow")

    v: Literal[1]
    id: str
    run: str
    rank: int
    incarnation: int
    model: str
    step: int
    micro_step: int | None
    time: Number
    kind: str
    severity: Literal["critical", "warning", "info"]
    subject: str
    message: str
    evidence: dict[str, Any]
    origin: dict[str, Any] | None
    noticed_at: dict[str, Any] | None
    propagated_to: list[str]
    stacks: dict[str, Any]
    advice: list[str]
    count: int
    last_step: int | None
    ended: bool


class EventList(Answer):
    """A page of events, by step, then time."""

    run: str
    events: list[EventModel]
    next_cursor: str | None = Field(
        description="what to pass as `cursor` for the next page; null on the last"
    )


class HistogramModel(BaseModel):
    """Elements counted by magnitude, at one step."""

    name: str = Field(description="gradient, parameter or activation")
    step: int
    tensors: int
    counts: list[int]


class HistogramList(Answer):
    """The newest histogram of each kind of one parameter, layer or module."""

    run: str
    rank: int
    subject: str
    edges: list[float] = Field(
        description="of `counts`: below the first, between two, from the last on; see docs/http-api.md"
    )
    histograms: list[HistogramModel]


class SubjectList(Answer):
    """What `histograms` can be asked for, in model order."""

    run: str
    rank: int
    subjects: list[str]


class DocumentModel(BaseModel):
    """Something that was measured as a whole: a memory snapshot, a profile, a region's times."""

    kind: str
    key: str
    rank: int
    incarnation: int
    step: int | None
    time: Number
    body: Any = Field(description="as its kind has it; null where it is no JSON")


class DocumentList(Answer):
    """The newest document of each key, by time."""

    run: str
    kind: str
    documents: list[DocumentModel]
    left_out: int = Field(description="older ones beyond `limit`")


class DocumentKinds(Answer):
    """Kinds of documents that a run has, with how many."""

    run: str
    kinds: dict[str, int]


class TrainingSummary(BaseModel):
    """Counts in steps, rates as fractions (0-1) of `total_steps`."""

    total_steps: int
    anomaly_steps: int
    gradient_explosions: int
    gradient_vanishing: int
    loss_anomalies: int
    anomaly_rate: float
    loss_anomaly_rate: float
    gradient_explosion_rate: float
    gradient_vanishing_rate: float


class TrainingDebugger(BaseModel):
    """What was found about the training itself."""

    total_anomalies: int
    debug_history_length: int
    total_steps: int
    anomaly_rate: float
    gradient_explosion_rate: float


class Debugger(BaseModel):
    """What was found beside it."""

    total_anomalies: int
    debug_history_length: int


class DebugSummary(BaseModel):
    """Events by what they are about; an anomaly is one at severity warning or critical."""

    training_debugger: TrainingDebugger
    diffusion_debugger: Debugger
    general_debugger: Debugger


class RunSummaryAnswer(Answer, TrainingSummary):
    """Everything that is counted of one rank."""

    run: str
    rank: int
    total_anomalies: int
    events: int
    steps_by_kind: dict[str, int]
    events_by_kind: dict[str, int]
    events_by_severity: dict[str, int]


class ReportAnswer(Answer):
    """A run's report: what it is, what was counted, found and measured."""

    run: RunDetail
    rank: int
    summary: RunSummaryAnswer
    series: dict[str, dict[str, Number]] = Field(description="first, last, min, mean and max of each series")
    events: list[EventModel] = Field(description="the newest 1,000")
    documents: dict[str, list[DocumentModel]] = Field(description="the newest 200 of each kind")


class PositionModel(BaseModel):
    """Delivery account of one stream: next_seq = stored + gaps + dropped."""

    writer: str
    stream: str
    next_seq: int
    stored: int
    gaps: int
    dropped: int


class GapModel(BaseModel):
    """Steps between which data is known to be missing."""

    rank: int
    first_step: int | None
    last_step: int | None
    count: int
    reason: str
    is_partial: bool = Field(description="the steps are there; what was measured of each parameter is not")


class Delivery(Answer):
    """What has arrived of a run, and what has not."""

    run: str
    positions: list[PositionModel]
    gaps: list[GapModel]


class TrainerAnswerModel(BaseModel):
    """What one trainer has answered."""

    rank: int
    incarnation: int
    problem: str | None = Field(description="why it was not followed; null where it was")
    state: dict[str, Any] | None = Field(description="what the trainer is asked for now")


class ControlAnswer(Answer):
    """What the trainers have answered."""

    run: str
    answers: list[TrainerAnswerModel]
