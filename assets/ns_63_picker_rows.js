// One row of the run picker: what it is made of and what it says (ns_62_run_picker.js has the list).
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
    const { element, tick } = made;
    const state = told ? told.state : ns.runState(run);
    element.classList.toggle("ns-active", isActive);
    element.classList.toggle("ns-picker-member", isMember === true);
    element.setAttribute("aria-selected", String(run.run === ns.view.run));
    tick.checked = ns.view.compared.includes(run.run);
    tick.disabled = !tick.checked && ns.view.compared.length >= ns.MOST_COMPARED;
    ns.setAttribute(tick, "aria-label", `Compare ${run.name} \u00b7 ${run.run.slice(-8)}`);
    ns.setTitle(tick.parentElement, tick.disabled ? `At most ${ns.MOST_COMPARED} runs are compared` : "Tick to compare");
    ns.setText(made.name, name);
    ns.setText(made.id, run.run.slice(-8));
    ns.setTitle(made.name.parentElement, `${run.name} \u00b7 ${run.run}`);
    ns.setAttribute(made.state, "data-state", ns.RUN_ICONS[state] || state);
    const word = ns.RUN_STATES[state] || state;
    ns.setText(made.word, state === "running" || !told ? word : `${word} ${ago(told.written)}`);
    ns.setText(made.step, told ? (told.step === null ? "no step yet" : `step ${ns.count(told.step)}`) : "\u2026");
    if (told) drawFaults(made.faults, told);
    ns.setText(made.started, `started ${ago(run.started)}`);
    ns.setTitle(made.started, absolute(run.started));
  };
})(window.nanscope);
