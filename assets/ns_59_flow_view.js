// Gradient flow in the view Layers: the switch, what is pointed at, the step by slider, keys or crosshair, and the
// outliers in words. Values: ns_57_flow.js; painting: ns_58_flow_canvas.js.
(function (ns) {
  "use strict";

  const MOST_LISTED = 8;
  const FAST = 10; // columns or layers that an arrow with Shift moves
  const SETTLE_MS = 300; // after which a moved step is in the address
  const map = ns.heatmap;
  let box = null, chosen = null, settling = 0, later = 0;
  let listed = null; // what stands in the list

  const canvas = () => ns.byId("flow-canvas");
  const slider = () => ns.byId("flow-steps");

  const stepsText = (flow) => {
    const first = flow.steps[flow.column];
    return flow.size > 1 ? `${ns.count(first)}\u2013${ns.count(first + flow.size - 1)}` : ns.count(first ?? 0);
  };

  // ------------------------------------------------------------------------------------------------- in words

  function opener(name) {
    const button = ns.make("button", "ns-link flow-name"), text = ns.make("bdi", "", name || "(root)");
    button.type = "button";
    // A long name loses its beginning: layers differ at the end.
    text.dir = "ltr";
    button.append(text);
    ns.setTitle(button, name || "(root)");
    button.dataset.row = name;
    return button;
  }

  function section(title, heads, rows, all) {
    if (!all) return [];
    const table = ns.make("table", "flow-table"), head = ns.make("tr");
    head.append(...heads.map((text) => { const cell = ns.make("th", "", text); cell.scope = "col"; return cell; }));
    const top = ns.make("thead"), body = ns.make("tbody");
    top.append(head);
    body.append(...rows.map(([name, ...texts]) => {
      const line = ns.make("tr"), first = ns.make("th");
      first.scope = "row";
      first.append(opener(name));
      line.append(first, ...texts.map((text) => ns.make("td", "", text)));
      return line;
    }));
    table.append(top, body);
    const more = all > rows.length ? [ns.make("p", "ns-small", `and ${ns.count(all - rows.length)} more`)] : [];
    return [ns.make("h3", "", title), table, ...more];
  }

  function outside(title, entries) {
    const { unit } = ns.statistic();
    const value = (code) => ns.quantity(ns.codeValue(code), unit);
    const rows = entries.slice(0, MOST_LISTED).map((entry) => {
      const times = 10 ** ns.decadesBetween(entry.now, entry.median);
      return [entry.name, value(entry.now), value(entry.median), `\u00d7${ns.significant(times)}`];
    });
    return section(title, ["layer", "now", "median", "ratio"], rows, entries.length);
  }

  function lasting(title, entries) {
    const rows = entries.slice(0, MOST_LISTED).map((entry) => [entry.name, `since step ${ns.count(entry.since)}`]);
    return section(title, ["layer", ""], rows, entries.length);
  }

  function shapeWords(flow) {
    if (flow.shape === null) return "";
    const times = 10 ** Math.abs(flow.shape), what = ns.statistic().label.toLowerCase();
    if (times < 1.5) return `From input to output the middle of the ${what} stays about the same.`;
    return `From the first quarter of the layers to the last the middle of the ${what} ${flow.shape > 0 ? "rises" : "falls"} ${ns.significant(times)} times.`;
  }

  function drawSide(flow) {
    if (flow === listed) return;
    listed = flow;
    const step = stepsText(flow), all = flow.above.length + flow.below.length;
    const side = ns.byId("flow-side"), focused = document.activeElement?.dataset?.row;
    const isFocused = side.contains(document.activeElement);
    const few = "A bar has nine of ten of the values before, so one layer in ten is outside of its own by chance.";
    const none = flow.entries.length ? "Every layer that was measured is in its bar." : "No layer has this name.";
    const words = [...(all || flow.bad.length || flow.zero.length ? [] : [none]), ...(all ? [few] : []), shapeWords(flow)];
    side.replaceChildren(
      ...lasting(`NaN or Inf at step ${step}`, flow.bad), ...outside(`Above their bar at step ${step}`, flow.above),
      ...outside(`Below their bar at step ${step}`, flow.below), ...lasting("Zero", flow.zero),
      ...words.filter(Boolean).map((text) => ns.make("p", "ns-small", text)),
    );
    if (isFocused) [...side.querySelectorAll("button")].find((button) => button.dataset.row === focused)?.focus();
  }

  function drawGutter(flow) {
    const { fields } = map, count = flow.entries.length, what = ns.statistic().of;
    ns.setText(ns.byId("flow-statistic"), ns.statistic().label);
    ns.setText(ns.byId("flow-step"), stepsText(flow));
    const pooled = flow.size > 1 ? `, each the largest of ${ns.count(flow.size)} steps` : "";
    const columns = Math.min(ns.flowWindow, flow.column);
    ns.setText(ns.byId("flow-bar-words"), `p5\u2013p95 and median of the ${ns.count(columns)} ${flow.size > 1 ? "columns" : "steps"} before${pooled}`);
    const outsiders = flow.above.length + flow.below.length;
    const facts = [`${ns.count(count)} ${what}${count === 1 ? "" : "s"}`, `${ns.count(outsiders)} outside of their bar`];
    if (flow.bad.length) facts.push(`${ns.count(flow.bad.length)} NaN or Inf`);
    if (flow.absent) facts.push(`${ns.count(flow.absent)} not measured`);
    if (flow.zero.length) facts.push(`${ns.count(flow.zero.length)} zero`);
    ns.setText(ns.byId("flow-facts"), fields.hasValues ? facts.join(", ") : "nothing measured in these steps");
    ns.setText(ns.byId("flow-follows"), ns.view.at === null ? "the newest" : "held; End follows the newest");
    const element = slider();
    const range = { "aria-valuemin": flow.steps[0] ?? 0, "aria-valuemax": flow.steps[flow.steps.length - 1] ?? 0, "aria-valuenow": flow.steps[flow.column] ?? 0 };
    for (const [name, value] of Object.entries(range)) ns.setAttribute(element, name, String(value));
    ns.setAttribute(element, "aria-valuetext", `step ${stepsText(flow)}: ${facts.join(", ")}`);
    const entry = flow.entries[chosen ?? 0];
    const depth = { "aria-valuemin": 0, "aria-valuemax": Math.max(0, count - 1), "aria-valuenow": chosen ?? 0 };
    for (const [name, value] of Object.entries(depth)) ns.setAttribute(canvas(), name, String(value));
    ns.setAttribute(canvas(), "aria-valuetext", entry ? `${entry.name || "(root)"}, step ${stepsText(flow)}: ${ns.flowWords(entry)}` : "no layer");
  }

  // In place of the heatmap (ns_50_heatmap.js).
  ns.drawFlow = function () {
    ns.layersLines(); // counts what the filter leaves
    const flow = ns.flow();
    map.shown = flow.entries.map((entry) => entry.row);
    if (chosen !== null && chosen >= flow.entries.length) chosen = null;
    if (canvas().clientWidth) {
      box = ns.paintFlow(canvas(), flow, chosen);
      ns.paintFlowSteps(slider(), flow);
    }
    drawGutter(flow);
    drawSide(flow);
    ns.emit("heatmap", map);
  };
  const redraw = () => ns.isFlow() && ns.later(ns.drawHeatmap);
  ns.flowLater = (wait) => { later = later || window.setTimeout(() => { later = 0; redraw(); }, wait); };

  // ------------------------------------------------------------------------------------------------- the step

  // Null follows the newest. A step under way changes nothing that the server is asked for, so it is told at its end.
  function setStep(step) {
    ns.view.at = step;
    redraw();
    window.clearTimeout(settling);
    settling = window.setTimeout(() => ns.isFlow() && ns.change({ at: ns.view.at }), SETTLE_MS);
  }

  function setColumn(column) {
    const { steps } = ns.flow();
    if (!steps.length) return;
    const next = Math.max(0, Math.min(steps.length - 1, column));
    setStep(next === steps.length - 1 && !ns.view.paused ? null : steps[next]);
  }

  function moveStep(event) {
    const by = { ArrowLeft: -1, ArrowDown: -1, ArrowRight: 1, ArrowUp: 1, PageDown: -FAST, PageUp: FAST, Home: -Infinity, End: Infinity }[event.key];
    if (by === undefined || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    setColumn(ns.flow().column + by * (event.shiftKey ? FAST : 1));
  }

  const pointed = (event) => setColumn(ns.flowColumnAt(slider(), event.clientX - slider().getBoundingClientRect().left, ns.flow().steps.length));

  // ------------------------------------------------------------------------------------------------- a layer

  function choose(index, event) {
    chosen = index;
    const entry = index === null ? null : ns.flow().entries[index], tooltip = ns.byId("tooltip");
    tooltip.hidden = !entry || !event;
    if (!tooltip.hidden) {
      const words = ns.flowWords(entry).split("; ");
      tooltip.replaceChildren(ns.make("b", "", entry.name || "(root)"), ...words.map((text) => ns.make("div", "", text)), ns.make("div", "ns-small", "click: its statistics and histograms"));
      const left = Math.min(event.clientX + 14, window.innerWidth - tooltip.offsetWidth - 8);
      Object.assign(tooltip.style, { left: left + "px", top: Math.min(event.clientY + 14, window.innerHeight - 90) + "px" });
    }
    redraw();
  }

  function indexAt(event) {
    if (!box) return null;
    const place = (event.clientX - canvas().getBoundingClientRect().left - box.left) / box.slot;
    const { length } = ns.flow().entries;
    return place < 0 || place >= length ? null : Math.floor(place);
  }

  function moveLayer(event) {
    if (event.key === "ArrowUp" || event.key === "ArrowDown") return moveStep(event);
    const by = { ArrowLeft: -1, ArrowRight: 1, Home: -Infinity, End: Infinity }[event.key];
    const { entries } = ns.flow();
    if (event.key === "Enter" && entries[chosen ?? 0]) return ns.openRow(entries[chosen ?? 0].name);
    if (by === undefined || !entries.length || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    choose(Math.max(0, Math.min(entries.length - 1, (chosen ?? -1) + by * (event.shiftKey ? FAST : 1))), null);
  }

  function show() {
    document.body.classList.toggle("ns-flow", ns.isFlow());
    for (const button of ns.byId("flow-switch").children) {
      ns.setAttribute(button, "aria-pressed", String((button.dataset.flow === "1") === ns.view.flow));
    }
    redraw();
  }

  ns.startFlow = function () {
    ns.byId("flow-switch").addEventListener("click", ({ target }) => "flow" in target.dataset && ns.change({ flow: target.dataset.flow === "1" }));
    slider().addEventListener("keydown", moveStep);
    slider().addEventListener("pointerdown", (event) => { slider().setPointerCapture(event.pointerId); pointed(event); });
    slider().addEventListener("pointermove", (event) => event.buttons && pointed(event));
    canvas().addEventListener("keydown", moveLayer);
    canvas().addEventListener("pointermove", (event) => choose(indexAt(event), event));
    for (const kind of ["pointerleave", "blur"]) canvas().addEventListener(kind, () => choose(null, null));
    canvas().addEventListener("click", (event) => { const entry = ns.flow().entries[indexAt(event)]; if (entry) ns.openRow(entry.name); });
    ns.byId("flow-side").addEventListener("click", ({ target }) => {
      const button = target.closest("[data-row]");
      if (button) ns.openRow(button.dataset.row);
    });
    // Here the pointer goes over depth, not over steps: it moves no crosshair.
    ns.byId("tracks").addEventListener("mousemove", (event) => ns.isFlow() && event.stopPropagation(), true);
    ns.on("crosshair", (step) => ns.isFlow() && step !== null && setStep(step));
    for (const name of ["view", "tab"]) ns.on(name, show);
    new ResizeObserver(redraw).observe(ns.byId("flow"));
    show();
  };
})(window.nanscope);
