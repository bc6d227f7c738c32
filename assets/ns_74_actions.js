// The section that changes a run: tells its callback (dashboard/page/callbacks/run_actions.py) which run is shown,
// and anew whenever the run's state or level changes.
(function (ns) {
  "use strict";

  let told = "";
  let last = { run: null, level: null };

  // What is there to be changed is asked for when somebody comes to see it.
  let visits = 0;
  function ask() {
    if (ns.view.tab !== "controls") return;
    visits += 1;
    for (const id of ["watchpoint-summary", "actions-summary"]) ns.setProps(id, { n_clicks: visits });
  }

  ns.startActions = function () {
    let shown = "";
    ns.on("view", ({ run, tab }) => {
      if (shown === run + tab) return;
      shown = run + tab;
      ask();
    });
    ns.on("message", (header) => {
      if (header.run === null || header.run !== ns.view.run) return;
      const scope = { run: header.run, state: header.state, level: header.level.name };
      const key = JSON.stringify(scope);
      if (key === told) return;
      told = key;
      const before = last.run === scope.run ? last.level : null;
      last = scope;
      ns.setProps("actions-scope", { data: { ...scope, before } });
    });
  };
})(window.nanscope);
