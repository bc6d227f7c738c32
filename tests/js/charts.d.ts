// The charts over steps: their scales, axis, lines and tracks.

/** From steps to shares of the width, and back; `left` and `span` are seconds. */
interface Axis {
  first: number; last: number;
  isTime: boolean;
  left?: number; span?: number;
  of(step: number): number;
  at(share: number): number;
}
interface AxisTick { share: number; text: string }
interface YScale { low: number; high: number; isLog: boolean; of(value: number): number }
type Values = Numbers | number[];
interface ChartLine {
  name?: string; label?: string;
  x: Values; y: Values;
  colour: string;
  width?: number; alpha?: number;
  hasDots?: boolean; isRaw?: boolean;
}
interface ChartArea { x: Values; low: Values; high: Values; colour: string; alpha?: number }
/** What is on the canvas of a chart. */
interface ChartPicture {
  id: string;
  box: PlotBox; axis: Axis; scale: YScale; colours: Colours;
  yTicks: number[]; xTicks: AxisTick[];
  hasFoot: boolean;
  lines: ChartLine[];
  areas: ChartArea[];
  bands: { kind: string; x: Values; half: number }[];
  marks: { name: string; isBar: boolean; colour: string; x: Values }[];
  gaps: Gap[];
  breaks: Break[];
  crosshair: number | null;
}
/** What is painted of it. */
type Painting = Omit<ChartPicture, "id" | "axis" | "crosshair"> & { axis: Pick<Axis, "of">; crosshair?: number | null };
interface FootPicture { box: PlotBox; xTicks: AxisTick[]; hasFoot: boolean; colours: Colours; hasLines?: boolean }

interface Nanscope {
  // ns_36_hatch.js, ns_37_scales.js, ns_38_axis.js, ns_39_painter.js
  hatch(context: CanvasRenderingContext2D, kind: string, colour: string): CanvasPattern;
  linearTicks(low: number, high: number, most: number): number[];
  logTicks(low: number, high: number, most: number): number[];
  stepTicks(first: number, last: number, most: number): number[];
  clockTicks(first: number, last: number, most: number): number[];
  tickText(value: number, ticks: number[]): string;
  yScale(low: number, high: number, isLog: boolean): YScale;
  fittedScale(limits: { lowest: number; positive: number; highest: number }, isLog: boolean): YScale;
  axis(): Axis;
  axisRange(): Steps;
  axisTicks(width: number): AxisTick[];
  clockAt(step: number): string;
  AXIS_WORDS: Record<string, string>;
  nextAxis(): void;
  startAxis(): void;
  FONT: string;
  LINE_PART: number;
  freshContext(canvas: HTMLCanvasElement, width: number, height: number): CanvasRenderingContext2D;
  paintFoot(context: CanvasRenderingContext2D, foot: FootPicture): void;
  paintChart(context: CanvasRenderingContext2D, chart: Painting): void;
  paintOn(context: CanvasRenderingContext2D, line: ChartLine, chart: Painting): void;
  yTicks(scale: YScale, height: number): number[];
  stacked(lines: ChartLine[]): ChartArea[];

  // ns_40_plots.js
  isNarrow(): boolean;
  limitsOf(arrays: Values[]): { lowest: number; positive: number; highest: number };
  painted(id: string): ChartPicture | undefined;
  hasFoot(id: string): boolean;
  boxOf(id: string): PlotBox | null;
  canvasOf(id: string): CanvasRenderingContext2D;
  chartList(): ChartTemplate[];
  chartFields(id: string): ChartFields | undefined;
  theme(): Theme;
  plot(id: string): any;
  plotWidth(): number;
  isTrack(id: string): boolean;
  drawLines(): void;
  drawChart(chart: ChartTemplate): void;
  isOnScreen(id: string): boolean;
  observe(card: Element): void;
  forgetPlot(id: string): void;
  startPlots(): void;

  // ns_41_newest.js
  lineWithNewest(id: string, name: string): { x: Values; y: Values };
  startNewest(): void;

  // ns_42_gutters.js
  lineValue(id: string, name: string, step: number | null): string;
  giveNewest(id: string, tile: Tile): void;
  makeGutter(id: string, title: string): HTMLElement;
  drawGutter(chart: ChartTemplate, fields: ChartFields): void;
  startGutters(): void;
  labelOf(chart: ChartTemplate, name: string): string;
  colourOf(chart: ChartTemplate, fields: ChartFields, name: string): string;

  // ns_43_lines.js
  smoothed(values: Numbers | number[], weight: number): Float64Array;
  smoothedLines(line: ChartLine): ChartLine[];
  innerLimits(values: number[]): [low: number, high: number] | null;
  lines: { smooth(): void; log(): void; clip(): void };
  startLines(): void;

  // ns_44_strip.js
  pan(share: number): void;
  zoomBy(factor: number): void;
  showSteps(first: number, end: number): void;
  startStrip(): void;

  // ns_45_crosshair.js
  crosshair(): number | null;
  setCrosshair(step: number | null): void;
  plotBox(card: HTMLElement): PlotBox | null;
  stepAt(card: HTMLElement, clientX: number): number | null;
  startCrosshair(): void;

  // ns_46_pointer.js to ns_49_pins.js
  startPointer(): void;
  drawTimeline(): void;
  startTimeline(): void;
  pictureWords(): string;
  picture(): HTMLCanvasElement;
  exportPng(): void;
  syncHeatRows(): void;
  heatRow(row: number): Uint16Array;
  heatKept(): number;
  heatSeen(): void;
  forgetPainted(): void;
  heatmapPainted(ms: number, isWhole: boolean): void;
  stretchOf(from: Pick<Axis, "first" | "last">, to: Pick<Axis, "first" | "last">): { scale: number; by: number };
  stretchHeatmap(): boolean;
  startPins(): void;
}
