// One row of the run picker: what it is made of and what it says (ns_62_run_picker.js has the list); and its button.
(function (ns) {
  "use strict";

  ns.RUN_ICONS = { running: "live", silent: "lagging" }; // as the one button of the header has them

  function cell(className, ...children) {
    const made = ns.make("div", className);
    made.setAttribute("role", "gridcell");
    made.append(...children);
    return made;
  }

  function row(className) {
    const element = ns.make("div", className);
    element.setAttribute("role", "row");
    return element;
  }

  ns.makePickerHead = function () {
    const title = cell("ns-picker-title");
    const element = row("ns-picker-head-row");
    element.append(title);
    return { element, title };
  };

  ns.makePickerRow = function (run) {
    const made = {
      element: row("ns-picker-row"), tick: ns.make("input"), name: ns.make("span", "ns-picker-run"), id: ns.make("span", "ns-small"),
      state: ns.make("span", "ns-state"), icon: ns.make("span", "ns-icon"), word: ns.make("span"),
      step: ns.make("span"), faults: ns.make("span", "ns-picker-faults"), started: ns.make("span", "ns-picker-started"),
    };
    made.element.dataset.run = run;
    made.tick.type = "checkbox";
    made.tick.tabIndex = -1;
    made.icon.setAttribute("aria-hidden", "true");
    made.state.append(made.icon, made.word);
    const facts = ns.make("span", "ns-picker-facts");
    facts.append(made.state, made.step, made.faults, made.started);
    const first = ns.make("span", "ns-picker-first");
    first.append(made.name, " ", made.id);
    made.element.append(cell("ns-picker-tick", made.tick), cell("ns-picker-text", first, facts));
    return made;
  };

  const absolute = ns.absoluteTime = (time) => new Date(time * 1000).toLocaleString();
  const ago = (time) => (time > ns.now() ? absolute(time) : time > ns.now() - 1 ? "now" : `${ns.seconds(ns.now() - time)} ago`);

  function fault(count, icon, severity) {
    const part = ns.make("span", `ns-fault-${severity}`, `${icon} ${ns.count(count)}`);
    part.append(ns.make("span", "ns-hidden", ` ${severity}`));
    return part;
  }

  function drawFaults(element, { critical, warnings }) {
    const key = `${critical} ${warnings}`;
    if (element.dataset.key === key) return;
    element.dataset.key = key;
    const parts = [];
    if (critical) parts.push(fault(critical, "\u25c6", "critical"));
    if (warnings) parts.push(fault(warnings, "\u25b2", "warning"));
    element.replaceChildren(...(parts.length ? parts : ["no faults"]));
  }

  // `told` is what the server says of the run; undefined until it has.
  ns.drawPickerRow = function (made, { run, name, isMember }, told, isActive) {
    const { tick } = made;
    drawName(made, name, run, { isActive, isMember, isShown: run.run === ns.view.run });
    tick.checked = ns.view.compared.includes(run.run);
    tick.disabled = !tick.checked && ns.view.compared.length >= ns.MOST_COMPARED;
    ns.setAttribute(tick, "aria-label", `Compare ${run.name} \u00b7 ${run.run.slice(-8)}`);
    ns.setTitle(tick.parentElement, tick.disabled ? `At most ${ns.MOST_COMPARED} runs are compared` : "Tick to compare");
    drawState(made, told ? told.state : ns.runState(run), told?.written);
    ns.setText(made.step, told ? (told.step === null ? "no step yet" : `step ${ns.count(told.step)}`) : "\u2026");
    if (told) drawFaults(made.faults, told);
    drawStarted(made, run);
  };

  // One row for all models of a run, which shows or hides theirs.
  ns.drawPickerSeries = function (made, { series, isFolded, isMember }, told, isActive) {
    const { models, title } = series, newest = models.at(-1);
    const known = models.map(({ run }) => told.get(run)).filter((one) => one !== undefined);
    const sum = (of) => known.reduce((total, one) => total + one[of], 0);
    drawName(made, `${isFolded ? "\u25b8" : "\u25be"} ${title}`, models[0], { isActive, isMember, isShown: models.some(({ run }) => run === ns.view.run) });
    made.tick.hidden = true;
    ns.setAttribute(made.element, "aria-expanded", String(!isFolded));
    const isRunning = models.some((run) => ns.runState(run) === "running");
    drawState(made, isRunning ? "running" : ns.runState(newest), told.get(newest.run)?.written);
    ns.setText(made.step, `${ns.count(models.length)} models`);
    if (known.length === models.length) drawFaults(made.faults, { critical: sum("critical"), warnings: sum("warnings") });
    drawStarted(made, models[0]);
  };

  function drawName({ element, name, id }, called, run, { isActive, isMember, isShown }) {
    element.classList.toggle("ns-active", isActive);
    element.classList.toggle("ns-picker-member", isMember === true);
    element.setAttribute("aria-selected", String(isShown));
    ns.setText(name, called);
    ns.setText(id, run.run.slice(-8));
    ns.setTitle(name.parentElement, `${run.name} \u00b7 ${run.run}`);
  }

  function drawState(made, state, written) {
    ns.setAttribute(made.state, "data-state", ns.RUN_ICONS[state] || state);
    const word = ns.RUN_STATES[state] || state;
    ns.setText(made.word, state === "running" || written === undefined ? word : `${word} ${ago(written)}`);
  }

  function drawStarted({ started }, run) {
    ns.setText(started, `started ${ago(run.started)}`);
    ns.setTitle(started, absolute(run.started));
  }

  // What the button says of the run that is shown.
  ns.drawRunButton = function (shown) {
    const button = ns.byId("run-select");
    const state = shown ? ns.runState(shown) : "";
    const name = shown ? shown.name : ns.runs ? (ns.runs.length ? ns.view.run || "" : "no run yet") : "connecting";
    // Which model it is has room whatever the run is called.
    const model = shown && (shown.series ?? null) !== null ? `model ${shown.member + 1}` : "";
    ns.setText(ns.byId("run-name"), model ? name.replace(` (${model})`, "") : name);
    ns.setText(ns.byId("run-id"), model || (shown ? shown.run.slice(-8) : ""));
    button.classList.toggle("ns-run-of-series", model !== "");
    ns.setAttribute(button, "data-state", shown ? ns.RUN_ICONS[state] || state : "connecting");
    ns.setAttribute(button, "aria-label", shown ? `Run: ${name}, ${ns.RUN_STATES[state] || state}` : `Run: ${name}`);
    ns.setTitle(button, shown ? `${shown.name} \u00b7 ${shown.run}` : "");
    ns.refreshRunPicker();
  };
})(window.nanscope);
