// Members that single views and dialogs add to the namespace of nanscope.d.ts.

/** A layer at one step, in codes of the heatmap (ns_57_flow.js). */
interface FlowEntry {
  row: number;
  name: string;
  now: number;
  count: number;
  /** p5, median and p95 of its values before; null where they are too few. */
  low: number | null; median: number | null; high: number | null;
  /** 1 is above of them, -1 below. */
  side: number;
}
type LastingEntry = FlowEntry & { since: number };
interface Flow {
  entries: FlowEntry[];
  column: number;
  steps: Numbers;
  /** Steps of a column. */
  size: number;
  course: Uint16Array;
  absent: number;
  above: FlowEntry[];
  below: FlowEntry[];
  /** Decades from the first quarter of the layers to the last. */
  shape: number | null;
  bad: LastingEntry[];
  zero: LastingEntry[];
}
/** Where the picture of the flow lies, in pixels. */
interface FlowBox {
  width: number; height: number; slot: number; range: number[] | null; zero: number;
  x(index: number): number;
  y(code: number): number;
  left: number; right: number; top: number; bottom: number;
}

/** A row of the view Ranks; `at` is its place in the arrays. */
interface MarkedRank { row: RankRow; order: number; colour: string }
interface RankRow { at: number; rank: number; host: string; top: number; height: number; isNew: boolean }

interface PickerRow {
  element: HTMLElement; tick: HTMLInputElement; name: HTMLElement; id: HTMLElement; state: HTMLElement; icon: HTMLElement;
  word: HTMLElement; step: HTMLElement; faults: HTMLElement; started: HTMLElement;
}
interface PickerEntry { run: RunEntry; name: string; isMember?: boolean }
interface PickerSeries { series: RunPart<RunEntry>; isFolded: boolean; isMember?: boolean }

/** A run, or the models that one makes one after the other. */
interface RunPart<Run> { run: string; models: Run[]; found: Run[]; isSeries: boolean; name: string; title: string }
interface RunGroup<Run> {
  group: string; script: string; together: string; parts: RunPart<Run>[];
  nameOf(run: Run, part: RunPart<Run>): string;
}
interface GroupedRun { run: string; name: string; model: string; group: string; started: number; member: number | null; series: string | null }

interface HistogramBox {
  left: number; width: number; top: number; bottom: number; bin: number; column: number;
  edge(number: number): number;
}
interface ShownHistogram {
  kind: HistogramKind; element: HTMLElement; canvas: HTMLCanvasElement; legend: HTMLElement;
  column: number | null; bin: number | null;
}

/** A module of the icicle; places are shares (0-1) of the whole. */
interface ModuleBox {
  name: string; depth: number; at: number; width: number; total_s: number; self_s: number;
  forward_s: number | null; backward_s: number | null;
}
interface ModuleTimes { run: string; rank: number; title: string; note: string; boxes: ModuleBox[]; hidden: number }

interface SavedView { name: string; query: string }

interface Nanscope {
  // ns_56_colours.js
  packedColour(hex: string): number;
  mixColours(from: number, to: number, share: number): number;

  // ns_57_layers_filter.js
  layersProblem(): string;
  layersFilterMark(): number;
  filteredRows(): number[];

  // ns_57_flow.js, ns_58_flow_canvas.js, ns_59_flow_view.js
  flowWindow: number;
  isFlow(): boolean;
  decadesBetween(code: number, other: number): number;
  flow(): Flow;
  flowWords(entry: FlowEntry): string;
  flowCells(step: number, most: number): [name: string, words: string][];
  paintFlow(canvas: HTMLCanvasElement, flow: Flow, chosen: number | null): FlowBox;
  paintFlowSteps(canvas: HTMLCanvasElement, flow: Flow): void;
  flowColumnAt(canvas: HTMLCanvasElement, x: number, count: number): number;
  drawFlow(): void;
  flowLater(milliseconds: number): void;
  startFlow(): void;

  // ns_57_ranks.js
  ranks: { fields: RanksFields | null; rows: RankRow[]; marked: MarkedRank[]; height: number };
  isRanks(): boolean;
  rankColumns(): Numbers;
  rankMedian(column: number): number;
  rankValue(at: number, column: number): number;
  rankAt(rank: number): number;
  rankDistance(value: number, median: number): number;
  rankDistanceText(distance: number): string;
  rankValueText(value: number | undefined): string;
  rankColumnAt(step: number): number;
  rankColumn(): number;
  layRanks(room: number): RankRow[];
  rankRowAt(y: number): RankRow | null;
  rankRows(): RankRow[];
  rankWindow(): { top: number; height: number };
  rankIsSeen(row: RankRow): boolean;
  scrollToRank(rank: number): void;
  drawRankMap(): void;
  drawRankAxis(): void;
  startRankMap(): void;
  showRankTip(event: MouseEvent, row: RankRow, column: number, at?: number | null): void;
  paintRanks(canvas: HTMLCanvasElement): void;

  // ns_58_ranks_rows.js, ns_58_ranks_tools.js, ns_59_ranks_track.js
  rankHost(row: RankRow): string;
  rankMark(rank: number): RankRemark | undefined;
  rankMarks: Record<string, string>;
  rankSteps(column: number): string;
  rankWords(row: RankRow, column: number): string;
  drawRankRows(isWhole?: boolean): void;
  rankCells(step: number): [name: string, words: string][];
  pickRank(rank: number): void;
  startRankRows(): void;
  drawRankRemarks(): void;
  drawRankTools(): void;
  startRankTools(): void;
  drawRanks(): void;
  startRanks(): void;

  // ns_78_icicle.js
  takeModuleTimes(answer: ModuleTimes): void;
  icicleCells(most: number): [name: string, words: string][];
  icicleTitle(): string;
  icicleBoxes(): ModuleBox[];
  startIcicle(): void;

  // ns_61_run_groups.js, ns_62_run_picker.js, ns_63_picker_rows.js, ns_67_overlay.js
  runState(run: RunEntry): string;
  groupRuns<Run extends GroupedRun>(runs: Run[], isFound: (run: Run) => boolean): RunGroup<Run>[];
  isFoundBy(search: string, run: string, id: string, texts: string[]): boolean;
  countRuns(runs: GroupedRun[], found: number): string;
  leftOut(known: number, total: number, drawn: number): string;
  takePickerRows(rows: PickerFacts[]): void;
  drawRunButton(shown: RunEntry | undefined): void;
  startRunPicker(): void;
  refreshRunPicker(): void;
  RUN_ICONS: Record<string, string>;
  makePickerHead(): { element: HTMLElement; title: HTMLElement };
  makePickerRow(run: string): PickerRow;
  absoluteTime(seconds: number): string;
  drawPickerRow(made: PickerRow, entry: PickerEntry, told: PickerFacts | undefined, isActive: boolean): void;
  drawPickerSeries(made: PickerRow, entry: PickerSeries, told: Map<string, PickerFacts>, isActive: boolean): void;
  overlayLines(id: string): ChartLine[];
  startOverlay(): void;

  // ns_75_memory.js, ns_75_tensor_tracks.js, ns_76_histogram_canvas.js, ns_76_system.js, ns_77_tensor_histograms.js
  startMemory(): void;
  showTensorTracks(shown: TensorTracks): void;
  startTensorTracks(): void;
  histogramCanvas: {
    geometry(canvas: HTMLCanvasElement, columns: number): HistogramBox;
    binAt(y: number, box: HistogramBox): number;
    draw(one: ShownHistogram): void;
    total(counts: number[]): number;
  };
  startSystem(): void;
  showHistograms(kinds: HistogramKind[]): void;
  shownHistograms(): HistogramKind[];
  startTensorHistograms(): void;

  // ns_85_export.js, ns_85_saved_views.js
  exportCovers(track?: string | null): string;
  exportAs(form: string, track?: string | null): void;
  openExport(track?: string | null): void;
  startExport(): void;
  savedViews(): SavedView[];
  openSaved(view: SavedView): void;
  startSavedViews(): void;

  // ns_86_notes.js, ns_87_note_marks.js
  annotations: Note[];
  addNote(): void;
  editNote(id: string): void;
  tell(text: string): void;
  deleteNote(id: string): Promise<void>;
  startNotes(): void;
  placeOfStep(step: number): number | null;
  drawNoteFlags(context: CanvasRenderingContext2D, xOf: (step: number) => number): void;
  startNoteMarks(): void;

  // ns_88_editor.js, ns_89_notify.js
  templateProblem(text: string): string;
  editorAddress(file: string, line: number): string | null;
  markLines(): void;
  drawVerdictLine(source: [file: string, line: number] | null): void;
  startEditor(): void;
  notifies(): boolean;
  notify(row: EventRow, count: number): void;
  startNotify(): void;
}
