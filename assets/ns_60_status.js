// Everything that says how things stand: connection, age of the newest data, live or paused, tiles, window
// title, notices, and the switch from the empty state to the charts.
(function (ns) {
  "use strict";

  const LAG_S = 5;
  const SILENT_LINK_MS = 7000;
  let status = null; // newest header about a run
  let runs = [];
  let clockOffset = 0; // server clock minus ours, seconds

  const STATES = {
    connecting: "connecting",
    reconnecting: "reconnecting",
    waiting: "waiting for a run",
    starting: "waiting for the first step",
    live: "live",
    lagging: "lagging",
    off: "recording is off",
    finished: "run ended",
    exception: "ended by an exception",
    killed: "run was killed",
  };

  function linkState(age) {
    const isSilent = performance.now() - ns.link.heardAt > SILENT_LINK_MS && !document.hidden;
    if (!ns.link.isOpen || isSilent) return ns.link.everOpen ? "reconnecting" : "connecting";
    if (!status) return "waiting";
    if (status.state in STATES) return status.state;
    if (isOff()) return "off";
    if (status.newestStep === null && status.state === "running") return "starting";
    // A run whose steps take long is not late after five seconds.
    const patience = Math.max(LAG_S, 4 * (status.stepSeconds || 0));
    return status.state === "silent" || (age !== null && age > patience) ? "lagging" : "live";
  }

  // Somebody asked for nothing to be recorded: no step is late then.
  const isOff = () => status !== null && status.state === "running" && status.level.name === "off";

  function drawConnection() {
    const now = Date.now() / 1000 + clockOffset;
    const age = status && status.newestTime !== null ? Math.max(0, now - status.newestTime) : null;
    const state = linkState(age);
    const pill = ns.byId("connection");
    ns.setAttribute(pill, "data-state", state);
    ns.setText(ns.byId("connection-text"), STATES[state]);
    ns.setText(ns.byId("connection-age"), age === null ? "" : age < 1 ? "now" : `${ns.seconds(age)} ago`);
    const newest = age === null ? "" : "Newest step: " + new Date(status.newestTime * 1000).toLocaleString();
    const off = state === "off" ? offText() : "";
    pill.title = [off, newest].filter(Boolean).join("\n");
  }

  function drawLive() {
    const { paused } = ns.view;
    const newest = status ? status.newestStep : null;
    const behind = paused && ns.range && newest !== null ? Math.max(0, newest + 1 - ns.range[1]) : 0;
    const text = !paused ? "Live" : behind ? `${ns.count(behind)} new steps, resume` : "Paused, resume";
    ns.setText(ns.byId("live-text"), text);
    ns.setAttribute(ns.byId("live-button"), "aria-pressed", String(!paused));
    ns.setAttribute(ns.byId("live-button"), "data-paused", String(paused));
  }

  function drawSpark(canvas, key) {
    const values = ns.array(key + "/line/y");
    const context = canvas.getContext("2d");
    const width = (canvas.width = canvas.clientWidth), height = (canvas.height = canvas.clientHeight);
    const finite = Array.from(values).filter(Number.isFinite);
    if (finite.length < 2) return;
    const low = Math.min(...finite), span = Math.max(...finite) - low || 1;
    context.strokeStyle = ns.theme().colours.series[0];
    context.lineWidth = 1.25;
    context.beginPath();
    let isDown = false;
    values.forEach((value, index) => {
      const x = (index / (values.length - 1)) * (width - 2) + 1;
      const y = height - 2 - ((value - low) / span) * (height - 4);
      if (Number.isFinite(value)) context[isDown ? "lineTo" : "moveTo"](x, y);
      isDown = Number.isFinite(value);
    });
    context.stroke();
  }

  function drawTiles(header) {
    for (const tile of header.tiles) {
      const element = ns.byId("tile-" + tile.id);
      if (!element) continue;
      ns.setText(element.querySelector(".ns-tile-value"), tile.value);
      ns.setText(element.querySelector(".ns-tile-unit"), tile.unit);
      ns.setText(element.querySelector(".ns-tile-detail"), tile.detail);
      element.classList.toggle("ns-bad", tile.is_bad);
      if (tile.hint) element.title = tile.hint;
    }
  }

  function drawSparks() {
    for (const tile of ns.templates.tiles) {
      if (!tile.series) continue;
      const chart = ns.templates.charts.find((each) => each.names.includes(tile.series));
      const canvas = ns.byId("tile-" + tile.id).querySelector("canvas");
      if (chart && canvas.clientWidth) drawSpark(canvas, `${chart.id}/${tile.series}`);
    }
  }

  // How far the training is, where it tells; what it does not know it does not show.
  function drawProgress(header) {
    const { progress } = header;
    ns.byId("progress").hidden = !progress;
    if (!progress) return;
    ns.setText(ns.byId("progress-text"), progress.text);
    const bar = ns.byId("progress-bar");
    bar.hidden = progress.fraction === null;
    if (progress.fraction !== null) bar.value = progress.fraction;
  }

  function drawTitle(header) {
    const step = header.newestStep === null ? "" : ` \u00b7 step ${ns.count(header.newestStep)}`;
    const text = header.headline ? `\u26a0 ${header.headline.text} \u00b7 ${header.name}` : header.name + step;
    if (document.title !== text + " \u2013 nanscope") document.title = text + " \u2013 nanscope";
    // Screen readers hear of a new critical event once.
    ns.setText(ns.byId("announcer"), header.headline ? header.headline.message : "");
  }

  const offText = () => "Level off since step " + ns.count(status.level.since ?? 0) + ": nothing is recorded until "
    + "another level is chosen, below under Level or by the script with run.set_level(\"basic\").";

  // Before its first step a run has nothing to draw: the charts' place says so.
  function drawNoStep(header) {
    const isEmpty = header.newestStep === null && header.eventEnd === null;
    const isOver = header.state in STATES && header.state !== "silent";
    const begun = "This run has begun. Its charts appear with the first step: the first update of an optimizer.";
    const text = isOver ? "This run ended before its first step." : isOff() ? offText() : begun;
    ns.setText(ns.byId("no-step"), text);
    ns.byId("no-step").hidden = !isEmpty;
    ns.byId("step-charts").hidden = isEmpty;
  }

  let ownNotice = "";
  let missing = null; // the run that the address named and that was not there

  // Shows a sentence of ours before those of the server.
  function drawNotices(fromServer) {
    const text = [ownNotice, ...fromServer].filter(Boolean).join(" ");
    ns.setText(ns.byId("notice"), text);
    ns.byId("notice").hidden = !text;
  }

  const isRunning = (run) => run.ranks.some((rank) => rank.state === "running");

  // A training of several models is one entry with its models inside, in the order in which they began.
  function runOptions() {
    const groups = new Map();
    for (const run of runs) groups.set(run.group, [run, ...(groups.get(run.group) || [])]);
    return [...groups.values()].map((models) => {
      const [first] = models;
      if (models.length === 1) return runOption(first, first.name);
      const scripts = new Set(models.map(scriptOf));
      // Trainings one after the other that somebody has named, in a sweep say, keep their names.
      const items = models.map((run) => runOption(run, scripts.size > 1 || !run.model ? run.name : run.model));
      const together = scripts.size > 1 ? `${models.length} runs of one process` : scriptOf(first);
      return { group: `${together} \u00b7 ${first.group.slice(-8)}`, items };
    });
  }

  const scriptOf = (run) => run.name.replace(` (${run.model})`, "");

  function runOption(run, name) {
    return { value: run.run, label: `${name} \u00b7 ${run.run.slice(-8)}${isRunning(run) ? " \u25cf" : ""}` };
  }

  function drawRuns() {
    const options = runOptions();
    const shown = runs.find((run) => run.run === ns.view.run);
    ns.give("run-select", ns.view.run, { data: options });
    ns.setAttribute(ns.byId("run-select"), "title", shown ? `${shown.name} \u00b7 ${shown.run}` : "");
    const ranks = shown ? shown.ranks.map(({ rank }) => ({ value: String(rank), label: `rank ${rank}` })) : [];
    ns.give("rank-select", String(ns.view.rank), { data: ranks, disabled: ranks.length < 2 });
    document.body.classList.toggle("ns-one-rank", ranks.length < 2);
    ns.byId("empty-state").hidden = runs.length > 0;
    ns.byId("charts").hidden = runs.length === 0;
  }

  // A run that appears: the page moves to it if nobody chose the old one and that one is over.
  function chooseByItself() {
    const shown = runs.find((run) => run.run === ns.view.run);
    const live = runs.find(isRunning);
    const isOver = shown && !isRunning(shown);
    if (shown && (ns.view.isOwnChoice || ns.view.paused || ns.view.event || !isOver || !live)) return;
    if (!shown && ns.view.run !== null) {
      if (!runs.length) return;
      missing = ns.view.run;
      ownNotice = `The run ${missing} is not here; this is the newest one.`;
    }
    const next = live || runs[0];
    if (next && next.run === missing) ownNotice = "";
    if (next) ns.chooseRun(next.run, false);
  }

  function takeRuns(list) {
    runs = list;
    ns.runCount = runs.length;
    chooseByItself();
    drawRuns();
  }

  ns.startStatus = function () {
    ns.on("runs", takeRuns);
    ns.on("message", (header) => {
      clockOffset = header.now - Date.now() / 1000;
      if (header.runs) takeRuns(header.runs);
      drawNotices(header.notices);
      ns.setText(ns.byId("storage"), header.storage || "");
      if (header.run === null || header.run !== ns.view.run) { if (header.run === null) status = null; return; }
      status = header;
      ns.newestStep = header.newestStep;
      drawTiles(header);
      drawProgress(header);
      drawNoStep(header);
      drawTitle(header);
      if (header.charts) ns.later(drawSparks);
      drawConnection();
      drawLive();
    });
    ns.on("view", () => {
      if (ns.view.isOwnChoice) ownNotice = "";
      drawLive();
      if (runs.length) drawRuns();
    });
    ns.on("link", drawConnection);
    ns.on("theme", () => ns.later(drawSparks));
    window.setInterval(drawConnection, 1000);
  };
})(window.nanscope);
