// Loads scripts of the page into a context of their own, as a browser does: classic scripts, one namespace. Elements
// are plain objects that keep what is put into them; nothing is laid out. Helper of the tests, has none itself.
import assert from "node:assert/strict";
import { readdirSync, readFileSync } from "node:fs";
import vm from "node:vm";

export const ASSETS = new URL("../../assets/", import.meta.url);
export const SCRIPTS = readdirSync(ASSETS).filter((name) => /^ns_\d\d_\w+\.js$/.test(name)).sort();

class Element {
  constructor(tag) {
    Object.assign(this, { tag, className: "", children: [], parentElement: null, attributes: new Map(), listeners: new Map() });
    Object.assign(this, { dataset: {}, style: { setProperty() {} }, value: "", title: "", hidden: false, own: "" });
    Object.assign(this, { scrollTop: 0, clientHeight: 0, clientWidth: 0 });
    this.classList = {
      add: (...names) => { this.className = [...new Set([...this.className.split(" "), ...names])].join(" ").trim(); },
      toggle: (name, isOn) => {
        const others = this.className.split(" ").filter((each) => each && each !== name);
        this.className = (isOn ? [...others, name] : others).join(" ");
      },
      contains: (name) => this.className.split(" ").includes(name),
    };
  }
  get textContent() { return this.own + this.children.map((each) => each.textContent ?? each).join(""); }
  set textContent(text) { this.children = []; this.own = text; }
  append(...nodes) {
    for (const node of nodes) if (node instanceof Element) node.parentElement = this;
    this.children.push(...nodes);
  }
  replaceChildren(...nodes) { this.children = []; this.append(...nodes); }
  get firstChild() { return this.children[0] ?? null; }
  get lastChild() { return this.children.at(-1) ?? null; }
  remove() {
    const from = this.parentElement?.children;
    from?.splice(from.indexOf(this), 1);
    this.parentElement = null;
  }
  setAttribute(name, value) { this.attributes.set(name, value); }
  getAttribute(name) { return this.attributes.get(name) ?? null; }
  contains(other) { return other === this || this.children.some((each) => each instanceof Element && each.contains(other)); }
  addEventListener(kind, listener) { this.listeners.set(kind, [...(this.listeners.get(kind) ?? []), listener]); }
  dispatch(kind, event = {}) { for (const listener of this.listeners.get(kind) ?? []) listener({ target: this, ...event }); }
}

// A worker that answers at once: its script is the real one, in a context of its own.
class Worker {
  constructor(address) {
    this.scope = vm.createContext({ postMessage: (data) => this.onmessage?.({ data: structuredClone(data) }) });
    this.scope.self = this.scope;
    vm.runInContext(readFileSync(new URL(new URL(address).pathname.split("/").pop(), ASSETS), "utf8"), this.scope);
  }
  postMessage(data) { this.scope.onmessage({ data: structuredClone(data) }); }
  terminate() {}
}

// A page with the scripts of these numbers ("00", "20"), at this address.
//   ns         the namespace
//   window     the page's window, where a test may put what is not there
//   load       loads more scripts, once that is done
//   byId       an element of the layout; made when it is first asked for
//   frame      runs what waits for the next frame
//   pass       lets milliseconds pass, and runs what waits for them
//   visited    what was written into the address: [how, address]
//   props      what was set on components of Dash: [id, properties]
export function open(numbers, { address = "/" } = {}) {
  const elements = new Map();
  const byId = (id) => elements.get(id) ?? elements.set(id, new Element("div")).get(id);
  const location = new URL(address, "http://127.0.0.1:8050");
  const visited = [], props = [];
  const timers = new Map();
  let frames = [], now = 0, timer = 0;
  const go = (how) => (_, title, text) => { visited.push([how, text]); location.href = new URL(text, location).href; };
  const window = {
    document: {
      getElementById: byId, createElement: (tag) => new Element(tag), addEventListener() {}, body: new Element("body"),
      activeElement: null, currentScript: { src: "http://127.0.0.1:8050/assets/any.js" },
    },
    location, history: { pushState: go("pushState"), replaceState: go("replaceState") },
    requestAnimationFrame: (draw) => frames.push(draw),
    performance: { now: () => now }, addEventListener() {},
    setTimeout: (call, wait, ...values) => { timers.set((timer += 1), { at: now + wait, call: () => call(...values) }); return timer; },
    clearTimeout: (id) => timers.delete(id),
    dash_clientside: { set_props: (id, values) => props.push([id, values]) },
    ResizeObserver: class { observe() {} },
    URLSearchParams, TextDecoder, URL, Worker,
  };
  window.window = window;
  const context = vm.createContext(window);
  const load = (...some) => {
    for (const name of SCRIPTS.filter((each) => some.includes(each.slice(3, 5)))) {
      vm.runInContext(readFileSync(new URL(name, ASSETS), "utf8"), context, { filename: name });
    }
  };
  load(...numbers);
  const frame = () => { const due = frames; frames = []; for (const draw of due) draw(); };
  const pass = (milliseconds) => {
    now += milliseconds;
    for (const [id, { at, call }] of [...timers]) if (at <= now && timers.delete(id)) call();
  };
  return { ns: context.nanscope, window: context, load, byId, frame, pass, visited, props, body: window.document.body };
}

// Values of the page come from another realm, whose Array is not ours: they are copied into ours before they are compared.
export function same(actual, expected, message) {
  assert.deepStrictEqual(structuredClone(actual), structuredClone(expected), message);
}

export function near(actual, expected, tolerance = 1e-12) {
  assert.equal(actual.length, expected.length);
  expected.forEach((value, index) => {
    const isNear = Number.isNaN(value) ? Number.isNaN(actual[index]) : Math.abs(actual[index] - value) <= tolerance;
    assert.ok(isNear, `${actual[index]} at ${index}, not ${value}`);
  });
}

// Numbers in [0, 1), the same in each run (mulberry32).
export function random(seed) {
  let state = seed;
  return () => {
    state = (state + 0x6d2b79f5) | 0;
    let mixed = Math.imul(state ^ (state >>> 15), 1 | state);
    mixed = (mixed + Math.imul(mixed ^ (mixed >>> 7), 61 | mixed)) ^ mixed;
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32;
  };
}

// The heatmap as a live message brings it: `cells[row]` has a row's codes by column, each one step wide.
export function fillHeatmap(ns, rows, { cells = rows.map(() => []), kinds = rows.map(() => "layer"), tensors = rows.map(() => 1) } = {}) {
  const columns = cells[0].length;
  const codes = Uint16Array.from({ length: columns * rows.length }, (_, at) => cells[at % rows.length][Math.floor(at / rows.length)]);
  ns.arrays.set("heatmap/codes", codes);
  ns.arrays.set("heatmap/steps", Float64Array.from({ length: columns }, (_, at) => at));
  ns.showArrays();
  const fields = { rowCount: rows.length, stepsPerColumn: 1, low: 5, high: 65535, statistic: "grad_norm", every: 1 };
  Object.assign(ns.heatmap, { rows, kinds, tensors, shown: rows.map((_, row) => row), fields });
}
