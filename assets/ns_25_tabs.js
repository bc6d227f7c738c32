// The views as tabs: which is open, which the run has data for (dashboard/page/tabs.py), and the number of faults.
(function (ns) {
  "use strict";

  // Tabs that a run may have nothing for, and whether it has something.
  /** @type {Record<string, (header: Header) => boolean>} */
  const HAS_DATA = {
    ranks: (header) => header.rankCount > 1,
    memory: (header) => ["memory_kinds", "memory", "allocator"].some((id) => header.charts[id].present)
      || ns.byId("documents-in-memory").childElementCount + ns.byId("memory-details").childElementCount > 0,
  };
  const MOST_COUNTED = 99; // the room beside the name has two digits; the title has them all
  let shown = "";

  const tabs = () => [...ns.byId("tab-bar").children].filter((tab) => !tab.hidden);
  const tabOf = (name) => ns.byId("tab-" + name);

  ns.chooseTab = (tab) => tab !== ns.view.tab && ns.change({ tab });

  function draw() {
    const chosen = tabOf(ns.view.tab) ? ns.view.tab : "overview";
    if (chosen === shown) return;
    shown = chosen;
    document.body.dataset.tab = chosen;
    for (const tab of ns.byId("tab-bar").children) {
      const isChosen = tab.dataset.tab === chosen;
      if (isChosen) tab.hidden = false;
      ns.setAttribute(tab, "aria-selected", String(isChosen));
      tab.tabIndex = isChosen ? 0 : -1;
      const panel = ns.byId(tab.getAttribute("aria-controls"));
      if (isChosen) panel.setAttribute("aria-labelledby", tab.id);
    }
    const open = tabOf(chosen).getAttribute("aria-controls");
    for (const panel of document.querySelectorAll(".ns-panel")) panel.hidden = panel.id !== open;
    ns.byId("tab-picker").value = chosen;
    ns.emit("tab", chosen);
  }

  let last = null; // newest header that carried data

  /** @param {Header} header */
  function place(header) {
    if (!header.charts) return;
    last = header;
    for (const [name, has] of Object.entries(HAS_DATA)) {
      tabOf(name).hidden = ns.byId("tab-option-" + name).hidden = name !== ns.view.tab && !has(header);
    }
  }

  /** @param {Header} header */
  function count(header) {
    if (!header.eventCounts) return;
    // Of the model that is shown, as the list is; the verdict is that of all models of the run.
    const { critical = 0, warning: warnings = 0 } = header.eventCounts;
    const badge = document.querySelector("[data-count=events]");
    const number = critical || warnings;
    ns.setText(badge, number > MOST_COUNTED ? `${MOST_COUNTED}+` : number ? String(number) : "");
    badge.dataset.severity = critical ? "critical" : "warning";
    ns.setTitle(badge, `${ns.count(critical)} critical, ${ns.count(warnings)} warnings`);
  }

  /** @param {KeyboardEvent} event */
  function move(event) {
    const steps = { ArrowRight: 1, ArrowLeft: -1, Home: -Infinity, End: Infinity };
    if (!(event.key in steps)) return;
    const all = tabs();
    const at = all.findIndex((tab) => tab.dataset.tab === shown);
    const next = Math.max(0, Math.min(all.length - 1, at + steps[event.key]));
    event.preventDefault();
    all[next].focus();
    ns.chooseTab(all[next].dataset.tab);
  }

  ns.startTabs = function () {
    const bar = ns.byId("tab-bar");
    bar.addEventListener("click", (event) => {
      const tab = event.target.closest("[data-tab]");
      if (tab) ns.chooseTab(tab.dataset.tab);
    });
    bar.addEventListener("keydown", move);
    ns.byId("tab-picker").addEventListener("change", () => ns.chooseTab(ns.byId("tab-picker").value));
    ns.on("view", draw);
    ns.on("message", place);
    ns.on("message", count);
    // What documents fill comes after the message that told of them.
    const filled = new MutationObserver(() => last && place(last));
    for (const id of ["documents-in-memory", "memory-details"]) filled.observe(ns.byId(id), { childList: true });
    draw();
  };
})(window.nanscope);
