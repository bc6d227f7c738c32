// The account of what was written and stored, in the view of the system: a Dash callback makes it
// (dashboard/page/callbacks/system.py) and is asked while the view is open.
(function (ns) {
  "use strict";

  const EVERY_MS = 5000;
  let asked = "";
  let askedAt = -Infinity;

  function ask(state) {
    const { run, rank, tab } = ns.view;
    if (run === null || tab !== "system") return;
    const key = [run, rank, state].join("|");
    if (key === asked && performance.now() - askedAt < EVERY_MS) return;
    asked = key;
    askedAt = performance.now();
    ns.setProps("system-scope", { data: { run, rank, mark: askedAt } });
  }

  ns.startSystem = function () {
    let state = "";
    ns.on("message", (header) => {
      if (header.run === null || header.run !== ns.view.run) return;
      state = header.state;
      ask(state);
    });
    ns.on("view", () => ask(state));
  };
})(window.nanscope);
