// Below the charts of memory: what feeds the growth, two snapshots compared, the tracked tensors. A Dash callback
// makes them (dashboard/page/callbacks/memory.py); here it is asked, when the run has something new and the view is
// open, and for the snapshots that somebody picks, which stand in the address.
(function (ns) {
  "use strict";

  const LEAST_MS = 2000; // between two askings of a run that goes on
  let documents = null; // marks of the newest message
  let events = null;
  let step = null;
  let asked = "";
  let askedAt = -Infinity;
  let timer = 0;

  function ask() {
    timer = 0;
    const { run, rank, first, end, tab, snapshots: picked } = ns.view;
    if (run === null || documents === null) return;
    // Elsewhere it only has to be known whether there is anything.
    const seen = tab === "memory" ? [events, step, first, end] : [];
    const key = [run, rank, documents, picked, seen].join("|");
    if (key === asked) return;
    const wait = askedAt + LEAST_MS - performance.now();
    if (wait > 0) {
      timer = window.setTimeout(ask, wait);
      return;
    }
    asked = key;
    askedAt = performance.now();
    ns.setProps("memory-scope", { data: { run, rank, first, end, picked, mark: askedAt } });
  }

  // A choice of somebody's, or another run, does not wait.
  function askNow() {
    window.clearTimeout(timer);
    askedAt = -Infinity;
    ask();
  }

  // The selects come anew with each answer; what they show is beside them. An answer to an older wish leaves the one
  // that somebody is at as it is.
  function showPicked() {
    const wished = ns.view.snapshots;
    for (const select of ns.byId("memory-details").querySelectorAll("[data-picked]")) {
      const { picked } = select.dataset;
      const isNewest = !wished.length || wished.includes(picked);
      if (isNewest || document.activeElement !== select) select.value = picked;
    }
  }

  ns.startMemory = function () {
    const details = ns.byId("memory-details");
    let shown = "";
    ns.on("message", (header) => {
      if (header.run === null || header.run !== ns.view.run) return;
      documents = header.documents;
      events = header.events;
      step = header.newestStep;
      if (!timer) ask();
    });
    ns.on("view", ({ run, rank, tab, first, end, snapshots }) => {
      const now = [run, rank, tab, first, end, snapshots].join("|");
      if (now === shown) return;
      shown = now;
      askNow();
    });
    details.addEventListener("change", ({ target }) => {
      if (!target.matches("[data-picked]")) return;
      ns.change({ snapshots: [...details.querySelectorAll("[data-picked]")].map((select) => select.value) });
    });
    details.addEventListener("click", ({ target }) => {
      const opens = target.closest("[data-open-event]");
      if (opens) ns.openEvent(opens.dataset.openEvent);
    });
    new MutationObserver(showPicked).observe(details, { childList: true, subtree: true });
  };
})(window.nanscope);
