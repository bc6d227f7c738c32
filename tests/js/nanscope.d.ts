// The namespace that the page's scripts share, `window.nanscope`: each of its members with its type, by the script that
// sets it. A member that is not declared here is an error, wherever it is used.

interface Window {
  nanscope: Nanscope;
  /** Dash's own; ours are its clientside functions. */
  dash_clientside: any;
}

// The page has HTML elements alone: what querySelector, children and an event's target give is one.
interface Element extends HTMLOrSVGElement, ElementCSSInlineStyle {
  hidden: string | boolean;
  title: string;
}
interface EventTarget {
  readonly dataset: DOMStringMap;
  /** Of a field. */
  value: any;
  closest(selectors: string): HTMLElement | null;
  matches(selectors: string): boolean;
}
interface Node {
  contains(other: EventTarget | null): boolean;
}

/** Elements of the layout that are more than an HTMLElement, by id; dialogs may be named so that they need no line. */
interface PageElements {
  "export-choice": HTMLSelectElement;
  "flow-canvas": HTMLCanvasElement;
  "flow-steps": HTMLCanvasElement;
  "icicle-canvas": HTMLCanvasElement;
  "heatmap-canvas": HTMLCanvasElement;
  "heatmap-select": HTMLSelectElement;
  "key-sheet": HTMLDialogElement;
  "layers-sort": HTMLSelectElement;
  "layers-sparks": HTMLCanvasElement;
  lines: HTMLDetailsElement;
  logged: HTMLDetailsElement;
  palette: HTMLDialogElement;
  "progress-bar": HTMLProgressElement;
  "ranks-canvas": HTMLCanvasElement;
  "ranks-map": HTMLCanvasElement;
  "ranks-line": HTMLCanvasElement;
  "ranks-select": HTMLSelectElement;
  "ranks-times": HTMLCanvasElement;
  strip: HTMLCanvasElement;
  values: HTMLDialogElement;
  "values-after": HTMLButtonElement;
  "values-before": HTMLButtonElement;
  "verdict-text": HTMLButtonElement;
}
type PageElement<Id extends string> = Id extends keyof PageElements ? PageElements[Id]
  : Id extends `${string}-dialog` ? HTMLDialogElement : HTMLElement;

/** What the scripts tell each other of, by ns.emit and ns.on: the value's type. */
interface PageEvents {
  message: Header;
  view: View;
  tab: string;
  crosshair: number | null;
  range: Steps;
  rest: View;
  rows: EventRowsAnswer | null;
  listed: EventRow[];
  theme: string;
  link: Link;
  runs: RunEntry[];
  "run-rows": RunRow[];
  logged: Logged;
  heatmap: HeatmapState;
  "first-draw": string;
  resized: string;
  axis: string;
  notes: Note[];
  /** Whether a hidden page hears of events. */
  notify: boolean;
}
/** A name that is written out must be one of those; one out of a list is taken as it is. */
type PageEvent<Name extends string> = string extends Name ? Name : Name extends keyof PageEvents ? Name : never;
type PageEventValue<Name extends string> = Name extends keyof PageEvents ? PageEvents[Name] : any;

/** What the user wants to see; all of it is in the address. */
interface View {
  run: string | null;
  rank: number;
  tab: string;
  event: string | null;
  row: string | null;
  wide: boolean;
  first: number | null;
  end: number | null;
  window: number | null;
  paused: boolean;
  unfolded: string[];
  heatmap: string;
  smooth: number;
  log: boolean;
  clip: boolean;
  /** The x-axis: "" is steps, "clock", "relative". */
  x: string;
  muted: string[];
  newestFirst: boolean;
  filter: string;
  sort: string;
  scale: string;
  folded: string[];
  pinned: string[];
  pinnedRows: string[];
  flow: boolean;
  at: number | null;
  logged: boolean;
  ranks: string;
  rankOrder: string;
  snapshots: string[];
  compared: string[];
  find: string;
  isOwnChoice: boolean;
}

interface Link { isOpen: boolean; everOpen: boolean; heardAt: number; bytes: number; messages: number }

/** The rows of the heatmap, and which of them are shown. */
interface HeatmapState {
  rows: string[];
  kinds: string[];
  tensors?: number[];
  /** The names as the newest picture has them: each brings the same ones until they change. */
  taken?: string[];
  /** Indices into rows. */
  shown: number[];
  fields: HeatmapFields | null;
  focus?: string;
  /** Layers: all lines; how many of how many rows they show. */
  lines?: LayersLine[];
  matched?: [shown: number, all: number];
}

/** A line of the view Layers: a row, or a group of rows. */
interface LayersLine {
  path: string;
  label: string;
  depth: number;
  parent: string;
  rows: number[];
  isGroup: boolean;
  isOpen: boolean;
  canOpen: boolean;
  isParameter: boolean;
  /** Of those that stay at the top. */
  isPinned: boolean;
  tensors: number;
}

/** Codes of a line by column, and the ends of their colours. */
interface HeatmapPicture { row(at: number): ArrayLike<number>; count: number; low: number; high: number }
interface PlotBox { l: number; t: number; w: number; h: number }
interface RunRowElements { row: HTMLTableRowElement; cells: Record<string, HTMLTableCellElement>; parts: any; shown?: RunLine }

/** What a row of the table says: of a run, or of a series, which is folded or not. */
interface RunLine extends RunRow { label?: string; isFolded?: boolean; isCurrent?: boolean }

interface PaletteEntry { kind: string; name: string; detail?: string; run(): void }

interface Nanscope {
  // ns_00_core.js
  on<Name extends string>(name: PageEvent<Name>, listener: (value: PageEventValue<Name>) => void): void;
  emit<Name extends string>(name: PageEvent<Name>, value: PageEventValue<Name>): void;
  later(draw: () => void): void;
  byId<Id extends string>(id: Id): PageElement<Id>;
  visible(text: string): string;
  setText(element: Node | null, text: string): void;
  setAttribute(element: Element | null, name: string, value: string): void;
  setTitle(element: Element, ...lines: string[]): void;
  make<Tag extends keyof HTMLElementTagNameMap>(tag: Tag, className?: string, text?: string): HTMLElementTagNameMap[Tag];
  setProps(id: string, props: object): void;
  give(id: string, value: string | null, props?: object): void;
  isPicked(id: string, value: string): boolean;
  count(number: number): string;
  significant(number: number): string;
  quantity(number: number, unit: string, precision?: number): string;
  seconds(seconds: number): string;

  // ns_05_parts.js
  fillParts(): void;

  // ns_10_codec.js
  changeOf(key: string): { before: Numbers | undefined; after: Numbers; drop: number; keep: number } | undefined;
  arrays: Map<string, Numbers>;
  array(key: string): Numbers;
  showArrays(): void;
  decode(buffer: ArrayBuffer): Header;

  // ns_20_view.js
  MOST_COMPARED: number;
  VIEW_ONLY: string;
  mayChange(): boolean;
  view: View;
  range: Steps | null;
  newestStep: number | null;
  change(patch: Partial<View>, isByUser?: boolean): void;
  chooseRun(run: string, isOwnChoice: boolean, also?: Partial<View>): void;
  pause(): void;
  resume(): void;
  reset(): void;
  togglePause(): void;
  setRange(range: Steps | null): void;
  layerOf(name: string): string;
  askedLayers(): string[];
  toggleUnfolded(layer: string): void;
  flushAddress(): void;
  address(): string;
  visit(query: URLSearchParams | string, isOwnChoice: boolean): void;
  startView(): void;
  writeMoving(): void;

  // ns_21_moves.js
  zoom(low: number, high: number): void;
  isMoving(): boolean;

  // ns_25_tabs.js
  chooseTab(tab: string): void;
  startTabs(): void;

  // ns_30_socket.js
  link: Link;
  subscribe(): void;
  startSocket(): void;

  // ns_41_logged.js
  startLogged(): void;

  // ns_50_heatmap.js
  heatmap: HeatmapState;
  codes: { FIRST: number; CODES: number; DECADES: number };
  codeValue(code: number): number;
  isBadCode(code: number): boolean;
  poolCodes(a: number, b: number): number;
  withSteadyScale(next: HeatmapFields, before: HeatmapFields | null): HeatmapFields;
  statistic(): Statistic;
  heatmapBox(isWhole?: boolean): PlotBox | null;
  drawHeatmap(): void;
  focusRows(path: string): void;
  isOrigin(path: string, isGroup: boolean): boolean;
  originName(): string | null;
  startOrigin(): void;
  startHeatmap(): void;

  // ns_51_heatmap_rows.js, ns_52_heatmap_hover.js
  startHeatmapRows(): void;
  describeCell(code: number, size: number): string;
  startHeatmapHover(): void;

  // ns_53_layers_lines.js
  isLayers(): boolean;
  isFolded(path: string): boolean;
  layersLines(): LayersLine[];
  /** Whether it is a row of its own, not a group or a parameter. */
  canPin(line: LayersLine): boolean;
  togglePinned(line: LayersLine): void;
  groupsOf(name: string): string[];

  // ns_54_layers_scales.js
  forgetLines(): void;
  lineCodes(line: LayersLine): Uint16Array;
  ownRange(codes: Uint16Array): [low: number, high: number];
  scaledCodes(line: LayersLine): Uint16Array;
  layersPicture(): HeatmapPicture;
  layersColumn: { (): number; asked?(): number | null };
  scaleWords(short: (code: number) => string): [low: string, high: string, of: string] | null;

  // ns_55_layers.js, ns_56_layers_values.js
  layersWidths(): { hasValues: boolean; hasSparks: boolean };
  layersMargin(): { l: number; r: number; t: number; b: number };
  visibleLines(): LayersLine[];
  linesHeight(): number;
  lineAt(at: number): LayersLine | null;
  chooseLines(box: PlotBox): void;
  focusFilter(): void;
  startLayers(): void;
  drawLayersValues(values: string[], height: number, column: number): void;

  // ns_60_status.js, ns_61_verdict.js
  now(): number;
  runs: RunEntry[];
  runCount: number;
  startStatus(): void;
  startVerdict(): void;

  // ns_64_run_rows.js, ns_65_runs.js, ns_66_run_actions.js, ns_67_runs_chart.js
  RUN_CELLS: string[];
  RUN_STATES: Record<string, string>;
  runLabel(row: RunRow): string;
  makeRunRow(run: string): RunRowElements;
  drawRunRow(elements: RunRowElements, data: RunLine): void;
  runRow(run: string): RunRow | undefined;
  askRuns(): void;
  takeRunRows(answer: { rows: RunRow[]; is_whole: boolean; total: number }): void;
  drawRuns(): void;
  startRuns(): void;
  isLeaving(run: string): boolean;
  isEditing(cell: Element): boolean;
  takeRunSaid(said: { run: string; act: string; problem: string; mark: number }): void;
  actOnRow(name: string, row: RunRow, element: RunRowElements): void;
  drawOverlay(answer: RunLines): void;
  startRunsChart(): void;
  startRunActions(): void;

  // ns_68_event_list.js, ns_69_density.js, ns_69_table.js
  startEventList(): void;
  showInList(id: string): void;
  eventDensity(rows: EventRow[], last: number, most: number): EventBar[];
  startDensity(): void;
  eventRows(): EventRow[];
  quietRows(): EventRow[];
  causeOf(id: string): string | undefined;
  takeRows(answer: EventRowsAnswer): void;
  rowsInOrder(): EventRow[] | null;
  startTable(): void;

  // ns_70_events.js, ns_71_panel.js
  openEvent(id: string): void;
  closeEvent(): void;
  moveEvent(direction: 1 | -1): void;
  startEvents(): void;
  panelShown(): HTMLElement | null;
  copy(text: string, button: Element): Promise<void>;
  startPanel(): void;

  // ns_72_rows.js, ns_73_documents.js, ns_74_actions.js
  hasHistograms(): boolean;
  openRow(name: string): void;
  closeRow(): void;
  chooseRow(name: string): void;
  canOpenRow(): boolean;
  toggleWide(): void;
  takeRow(answer: RowAnswer): void;
  takeRowTracks(answer: RowTracks): void;
  startRows(): void;
  startDocuments(): void;
  startActions(): void;

  // ns_80_keys.js to ns_90_callbacks.js
  openKeys(): void;
  toggleFullScreen(): void;
  startKeys(): void;
  startMenu(): void;
  fuzzyScore(letters: string, name: string): number;
  openPalette(): void;
  startPalette(): void;
  openValues(): void;
  startValues(): void;
  startToast(): void;
  themeName: string;
  templates: Templates;
}
