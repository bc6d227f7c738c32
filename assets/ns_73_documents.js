// Snapshots, profiles and the like below the charts: folded sections that a Dash callback fills
// (dashboard/page/callbacks/documents.py), asked for again when a document of the run arrives.
(function (ns) {
  "use strict";

  const LEAST_MS = 1000; // between two askings of a run that writes many
  let mark = 0;
  let asked = "";
  let timer = 0;

  function ask() {
    timer = 0;
    const { run, rank } = ns.view;
    const key = [run, rank, mark].join("|");
    if (run === null || key === asked) return;
    asked = key;
    ns.setProps("documents-scope", { data: { run, rank, mark } });
  }

  ns.startDocuments = function () {
    ns.on("message", (header) => {
      if (header.run === null || header.run !== ns.view.run || header.documents === mark) return;
      mark = header.documents;
      if (!timer) timer = window.setTimeout(ask, asked ? LEAST_MS : 0);
    });
    ns.on("view", ask);
    ask();
  };
})(window.nanscope);
