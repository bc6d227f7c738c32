// Everything that says how things stand: connection, age of the newest data, live or paused, tiles, notices,
// and the switch from the empty state to the charts.
(function (ns) {
  "use strict";

  const LONG_LIST = 64; // ranks that the list shows at once; beyond, one types a part of the number

  const LAG_S = 5;
  const SILENT_LINK_MS = 7000;
  /** @type {Header | null} */
  let status = null; // newest header about a run
  /** @type {RunEntry[] | null} */
  let runs = null; // null until the server has said which there are
  let given = null; // run that the picker's button has as its value
  let clockOffset = 0; // server clock minus ours, seconds

  const AHEAD_S = 60; // a clock that goes before ours by more says nothing of ages

  /** @type {Record<string, (age: number | null) => string>} */
  const STATES = {
    connecting: () => "connecting",
    reconnecting: () => "reconnecting",
    waiting: () => "waiting for a run",
    starting: () => "waiting for the first step",
    live: () => `live${speed()}`,
    lagging: (age) => `lagging${ago(age)}`,
    off: () => "recording is off",
    finished: (age) => `ended${ago(age)}`,
    exception: (age) => `exception${ago(age)}`,
    killed: (age) => `killed${ago(age)}`,
  };

  ns.now = () => Date.now() / 1000 + clockOffset; // the server's clock
  const ago = (age) => (age === null ? "" : age < 1 ? " now" : ` ${ns.seconds(age)} ago`);
  const speed = () => (status.stepSeconds ? ` ${ns.significant(1 / status.stepSeconds)}/s` : "");

  function linkState(age) {
    const isSilent = performance.now() - ns.link.heardAt > SILENT_LINK_MS && !document.hidden;
    if (!ns.link.isOpen || isSilent) return ns.link.everOpen ? "reconnecting" : "connecting";
    if (!status) return runs !== null && !runs.length ? "waiting" : "connecting";
    if (status.state in STATES) return status.state;
    if (isOff()) return "off";
    if (status.newestStep === null && status.state === "running") return "starting";
    // A run whose steps take long is not late after five seconds.
    const patience = Math.max(LAG_S, 4 * (status.stepSeconds || 0));
    return status.state === "silent" || (age !== null && age > patience) ? "lagging" : "live";
  }

  // Somebody asked for nothing to be recorded: no step is late then.
  const isOff = () => status !== null && status.state === "running" && status.level.name === "off";

  // One button says how the page stands to the run: the link, then whether it is held still, then the run itself.
  function drawState() {
    const newest = status ? status.newestTime : null;
    const isAhead = newest !== null && newest > ns.now() + AHEAD_S;
    const age = newest === null || isAhead ? null : Math.max(0, ns.now() - newest);
    const state = linkState(age);
    const isHeld = ns.view.paused && state !== "connecting" && state !== "reconnecting";
    const button = ns.byId("live-button");
    const losses = status && status.lost ? ` \u00b7 ${ns.count(status.lost)} lost` : "";
    ns.setText(ns.byId("live-text"), (isHeld ? heldText() : STATES[state](age)) + losses);
    ns.setAttribute(button, "aria-pressed", String(!ns.view.paused));
    ns.setAttribute(button, "data-paused", String(ns.view.paused));
    ns.setAttribute(button, "data-state", isHeld ? "paused" : state);
    const clock = isAhead ? "The training machine's clock is ahead of this one." : "";
    const at = newest === null ? "" : "Newest step: " + new Date(newest * 1000).toLocaleString();
    const lost = status && status.lost ? `${ns.count(status.lost)} records could not be written and are lost` : "";
    ns.setAttribute(button, "data-lost", String(Boolean(lost)));
    const does = ns.view.paused ? "Follow the newest step again (Space)" : "Hold the charts still (Space)";
    ns.setTitle(button, state === "off" ? offText() : "", lost, at, clock, does);
  }

  function heldText() {
    const newest = status ? status.newestStep : null;
    const behind = ns.range && newest !== null ? Math.max(0, newest + 1 - ns.range[1]) : 0;
    return behind ? `${ns.count(behind)} new` : "paused";
  }

  /** @param {Header} header */
  function drawTiles(header) {
    for (const tile of header.tiles) {
      const element = ns.byId("tile-" + tile.id);
      if (ns.templates.tracks.includes(tile.id)) { ns.giveNewest(tile.id, tile); continue; }
      if (tile.id === "step") { ns.setText(element.querySelector(".ns-tile-value"), tile.value); continue; }
      ns.setText(element.querySelector(".ns-tile-value"), tile.value);
      ns.setText(element.querySelector(".ns-tile-unit"), tile.unit);
      ns.setText(element.querySelector(".ns-tile-detail"), tile.detail);
      element.classList.toggle("ns-bad", tile.is_bad);
      if (tile.hint) ns.setTitle(element, tile.hint);
    }
  }

  // How far the training is, where it tells; what it does not know it does not show.
  /** @param {Header} header */
  function drawProgress(header) {
    const { progress } = header;
    ns.byId("progress").hidden = !progress;
    if (!progress) return;
    ns.setText(ns.byId("progress-text"), progress.text);
    const bar = ns.byId("progress-bar");
    bar.hidden = progress.fraction === null;
    if (progress.fraction !== null) bar.value = progress.fraction;
  }

  const offText = () => "Level off since step " + ns.count(status.level.since ?? 0) + ": nothing is recorded until "
    + "another level is chosen, under Controls or by the script with run.set_level(\"basic\").";

  // Before its first step a run has nothing to draw: the charts' place says so.
  /** @param {Header} header */
  function drawNoStep(header) {
    const isEmpty = header.newestStep === null && header.eventEnd === null;
    const isOver = header.state in STATES && header.state !== "silent";
    const begun = "This run has started. Charts appear with its first step (the first optimizer update).";
    const text = isOver ? "This run ended before its first step." : isOff() ? offText() : begun;
    ns.setText(ns.byId("no-step"), text);
    ns.byId("no-step").hidden = !isEmpty;
    document.body.classList.toggle("ns-no-step-yet", isEmpty);
  }

  let ownNotice = "";
  let missing = null; // the run that the address named and that was not there

  // Shows a sentence of ours before those of the server.
  function drawNotices(fromServer) {
    const text = [ownNotice, ...fromServer].filter(Boolean).join(" ");
    ns.setText(ns.byId("notice"), text);
    ns.byId("notice").hidden = !text;
  }

  /** @param {RunEntry} run */
  const isRunning = (run) => run.ranks.some((rank) => rank.state === "running");

  function drawRuns() {
    const shown = runs.find((run) => run.run === ns.view.run);
    if (given !== ns.view.run) ns.setProps("run-select", { value: ns.view.run || "" });
    given = ns.view.run;
    ns.drawRunButton(shown);
    checkRank(shown);
    const ranks = shown ? shown.ranks.map(({ rank }) => ({ value: String(rank), label: `rank ${rank}` })) : [];
    const isLong = ranks.length > LONG_LIST;
    ns.give("rank-select", String(ns.view.rank), {
      data: ranks, disabled: ranks.length < 2, searchable: isLong, limit: isLong ? LONG_LIST : null,
      nothingFoundMessage: "No such rank",
    });
    document.body.classList.toggle("ns-one-rank", ranks.length < 2);
    ns.byId("connecting").hidden = true;
    ns.byId("empty-state").hidden = runs.length > 0;
    ns.byId("charts").hidden = runs.length === 0;
    document.body.classList.toggle("ns-no-runs", runs.length === 0);
  }

  // A run that appears: the page moves to it if nobody chose the old one and that one is over.
  function chooseByItself() {
    if (ns.view.run === null && ns.view.event !== null) return;
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

  // An address may name an event alone, whose run the server looks for: then both are in the address.
  /** @param {Header} header */
  function chooseByEvent({ eventRun }) {
    const { run, event } = ns.view;
    if (run !== null || event === null || eventRun === undefined || !runs?.length) return;
    if (eventRun !== null) return ns.change({ run: eventRun, isOwnChoice: true }, false);
    ownNotice = `No run here has the event ${event}; this is the newest run.`;
    ns.chooseRun((runs.find(isRunning) || runs[0]).run, false);
  }

  // An address may name a rank that the run has not; the one nearest to it is shown.
  /** @param {RunEntry | undefined} shown */
  function checkRank(shown) {
    if (!shown || !shown.ranks.length || shown.ranks.some(({ rank }) => rank === ns.view.rank)) return;
    const apart = (one) => Math.abs(one - ns.view.rank);
    const rank = shown.ranks.map((each) => each.rank).reduce((a, b) => (apart(b) < apart(a) ? b : a));
    const text = `Rank ${ns.view.rank} is not in this run; this is rank ${rank}.`;
    ns.change({ rank }, false);
    ownNotice = text;
  }

  /** @param {RunEntry[]} list */
  function takeRuns(list) {
    runs = list;
    ns.runs = runs;
    ns.runCount = runs.length;
    chooseByItself();
    drawRuns();
    drawState();
  }

  ns.startStatus = function () {
    ns.on("runs", takeRuns);
    ns.on("message", (header) => {
      clockOffset = header.now - Date.now() / 1000;
      if (header.runs) takeRuns(header.runs);
      chooseByEvent(header);
      drawNotices(header.notices);
      ns.setText(ns.byId("storage"), header.storage || "");
      if (header.run === null || header.run !== ns.view.run) { if (header.run === null) status = null; return; }
      status = header;
      ns.newestStep = header.newestStep;
      drawTiles(header);
      drawProgress(header);
      drawNoStep(header);
      drawState();
    });
    ns.on("view", () => {
      if (ns.view.isOwnChoice) ownNotice = "";
      drawState();
      if (runs?.length) drawRuns();
    });
    ns.on("link", drawState);
    window.setInterval(drawState, 1000);
  };
})(window.nanscope);
