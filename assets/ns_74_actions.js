// The section that changes a run: tells its callback (dashboard/page/callbacks/run_actions.py) which run is shown,
// and anew whenever the run's state or level changes.
(function (ns) {
  "use strict";

  let told = "";

  ns.startActions = function () {
    ns.on("message", (header) => {
      if (header.run === null || header.run !== ns.view.run) return;
      const scope = { run: header.run, state: header.state, level: header.level.name };
      const key = JSON.stringify(scope);
      if (key === told) return;
      told = key;
      ns.setProps("actions-scope", { data: scope });
    });
  };
})(window.nanscope);
