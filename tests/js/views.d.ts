// What single views add to the types of nanscope.d.ts and page_data.d.ts.

interface View {
  /** The x-axis: "" is steps, "clock", "relative". */
  x?: string;
  pinned?: string[];
  wide?: boolean;
  flow?: boolean;
  at?: number | null;
  ranks?: string;
  rankOrder?: string;
}

interface PageEvents {
  axis: string;
  notes: any[];
  notify: any;
}

interface Header {
  started?: number;
  ranks?: any;
  rankCount?: number;
}

interface Templates { magnitudes?: any }
interface ChartTemplate { unit?: string; stacked?: boolean }
interface Colours { kinds?: any }
interface Verdict { source?: any }

interface PageElements {
  "export-choice": HTMLSelectElement;
  "ranks-select": HTMLSelectElement;
  "ranks-canvas": HTMLCanvasElement;
  "ranks-line": HTMLCanvasElement;
  "ranks-times": HTMLCanvasElement;
}
