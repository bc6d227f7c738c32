// What the server sends to the page's scripts: the header of a live message (dashboard/live/live_view.py, pictures.py),
// the templates (dashboard/page/layout.py) and the answers of the callbacks. null is a missing value.

type Severity = "none" | "warning" | "critical";
type Numbers = Float32Array | Float64Array | Uint8Array | Uint16Array;
/** Steps [first, end). */
type Steps = [first: number, end: number];

interface ChartTemplate {
  id: string;
  title: string;
  unit: string;
  names: string[];
  labels: Record<string, string>;
  prefix: string | null;
  /** Series that mark steps, by name. */
  marks: Record<string, { isCount: boolean }>;
  log: boolean;
  always: boolean;
  stacked: boolean;
}

interface Statistic {
  id: string;
  label: string;
  title: string;
  scale: string;
  of: string;
  unit: string;
  isCount: boolean;
}

interface Theme { colours: Colours }

interface Colours {
  nan: string; inf: string; unmeasured: string; gap: string; grid: string; text: string; muted: string;
  series: string[];
  /** Of stacked areas, from the bottom up. */
  kinds: string[];
  /** By severity_order: critical, warning, info. */
  severities: string[];
}

/** Bins of magnitudes and the formats over them (dashboard/page/views/magnitude_facts.py). */
interface Magnitudes {
  bins: string[];
  zero: number; inf: number; nan: number;
  ticks: [text: string, bin: number][];
  formats: { name: string; low: number; normal: number; high: number; range: string }[];
}

interface Templates {
  themes: Record<string, Theme>;
  charts: ChartTemplate[];
  logged: ChartTemplate;
  logRatio: number;
  cividis: string[];
  statistics: Statistic[];
  tracks: string[];
  magnitudes: Magnitudes;
}

interface ChartFields {
  series: string[];
  note: string | null;
  present: boolean;
  /** Name of a mark -> its text. */
  marks?: Record<string, string>;
}

interface HeatmapFields {
  rowCount: number;
  stepsPerColumn: number;
  low: number | null;
  high: number | null;
  hasValues: boolean;
  note: string;
  every: number;
  statistic: string;
  statistics: string[];
  /** The server sends them where they have changed; `decode` fills in what it sent before. */
  rows?: string[];
  kinds?: string[];
  tensors?: number[];
}

interface Tile { id: string; value: string; unit: string; detail: string; is_bad: boolean; hint: string; lines: Record<string, string> }
interface RankState { rank: number; state: string }

/** A line of the run selector. */
interface RunEntry { run: string; name: string; started: number; group: string; model: string; member: number | null; series: string | null; ranks: RankState[] }

interface Verdict {
  severity: Severity;
  parts: [text: string, isCode: boolean][];
  title: string;
  event: string | null;
  /** Run of that event: another model's, as the case may be. */
  run: string | null;
  consequences: number;
  time: number | null;
  step: number | null;
  rank: number | null;
  /** File and line at which the fault began. */
  source: [file: string, line: number] | null;
  /** Critical events and warnings of the run. */
  counts: [critical: number, warnings: number];
}

interface Logged { names: string[]; count: number }
/** Where recording stopped or steps began again (dashboard/page/views/breaks.py). */
interface Break { step: number; kind: string; text: string }
/** What somebody has written at a step. */
interface Note { id: string; step: number; text: string }
interface Gap { first: number | null; last: number | null; count: number; reason: string }

/** Header of one live message. `charts` and what follows it are there only with new data. */
interface Header {
  arrays: [key: string, dtype: "f4" | "f8" | "u1" | "u2", drop: number, keep: number, count: number][];
  subscription: number;
  now: number;
  notices: string[];
  storage: string | null;
  runs?: RunEntry[];
  run: string | null;
  /** Run of the event that was asked for without one; null where no run has it. */
  eventRun?: string | null;
  name: string;
  rank: number;
  state: string;
  newestStep: number | null;
  newestTime: number | null;
  stepSeconds: number | null;
  /** Records that could not be written. */
  lost: number;
  tiles: Tile[];
  progress: { text: string; fraction: number | null } | null;
  events: number;
  eventEnd: number | null;
  level: { name: string; since: number | null };
  histograms: number | null;
  verdict: Verdict;
  /** Of the model that is shown; absent where there is no run. */
  eventCounts?: { critical?: number; warning?: number; info?: number };
  documents: number;
  rankCount: number;
  /** Points of the tracks since the last picture, by line; null is NaN or Inf (dashboard/live/newest.py). */
  newest?: Record<string, [steps: number[], values: (number | null)[]]>;
  /** The run's first second. */
  started?: number;
  notes?: Note[];
  charts?: Record<string, ChartFields>;
  range?: Steps;
  gaps?: Gap[];
  breaks?: Break[];
  ranks?: RanksFields | null;
  logged?: Logged;
  heatmap?: HeatmapFields | null;
}

/** One row of the list of events (dashboard/page/views/event_table.py). */
/** Events of some steps in a row: how many by severity, and the first of them. */
interface EventBar { first: number; last: number; counts: number[]; id: string; step: number }
interface EventRow {
  id: string;
  /** Icon and word. */
  severity: string;
  severity_order: number;
  is_last: boolean;
  step: number;
  message: string;
  line: string;
  kind: string;
  rank: number;
  count: number;
  time: string;
}

/** A part of the rows (dashboard/page/callbacks/events.py). */
interface EventRowsAnswer {
  run: string;
  clear: boolean;
  rows: EventRow[];
  epoch: string;
  low: number;
  high: number;
  newest: number;
  total: number;
  causes: Record<string, string>;
}

/** One row of the table of all runs (dashboard/page/run_table.py). */
interface RunRow {
  run: string;
  name: string;
  group: string;
  model: string;
  /** Which of the models that one run makes one after the other. */
  member: number | null;
  /** The run that makes several; null for a run of one model. */
  series: string | null;
  started: number;
  state: string;
  written: number;
  step: number | null;
  best: number | null;
  losses: (number | null)[];
  is_read: boolean;
  critical: number;
  warnings: number;
  note: string;
  starred: boolean;
  /** Why it cannot be deleted; "" where it can. */
  stays: string;
}

/** A sentence of the view Ranks (dashboard/page/views/rank_words.py). */
interface RankRemark {
  severity: Severity;
  text: string;
  ranks: number[];
  step: number | null;
  kind: "bad" | "slow" | "far" | "none";
}

/** All ranks of a run (dashboard/live/ranks.py). */
interface RanksFields {
  statistic: string;
  statistics: string[];
  ranks: number[];
  hosts: string[];
  present: boolean[];
  stepsPerColumn: number;
  unit: string;
  scale: string;
  scaleEnd: number;
  pooled: string;
  caption: string;
  remarks: RankRemark[];
  times: { what: string; p50: (number | null)[]; p95: (number | null)[]; median: number | null; note: string };
}

/** What the run picker says of a run (dashboard/page/run_picker.py). */
interface PickerFacts { run: string; state: string; written: number; step: number | null; critical: number; warnings: number }

/** Losses of the ticked runs (dashboard/page/callbacks/runs.py). */
interface RunLines { lines?: { label: string; x: number[]; y: (number | null)[] }[] }

/** Histograms of one kind over time, and the tracks of a tensor (dashboard/page/callbacks/rows.py). */
interface HistogramKind { name: string; title: string; steps: number[]; counts: number[][] }
/** The run, rank and row that an answer belongs to. */
interface RowOf { run: string; rank: number; row: string }
interface RowAnswer extends RowOf { watch: string; kinds: HistogramKind[] }
interface TensorTrack {
  name: string; label: string; unit: string;
  /** Steps of a column. */
  size: number;
  steps: number[];
  values: (number | null)[];
  /** 2 is NaN, 4 is Inf. */
  flags: number[];
}
interface RowTracks extends TensorTracks, RowOf {}
interface TensorTracks {
  tracks: TensorTrack[];
  newest: {
    columns: [label: string, unit: string][];
    size: number;
    rows: [step: number, cells: ([value: number | null, flags: number] | null)[]][];
  };
}
