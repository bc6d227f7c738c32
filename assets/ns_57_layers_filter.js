// Which rows the pattern of the view Layers names. The names are judged in a worker (filter_worker.js), for so long and
// no longer: whatever is typed, the page goes on. Until an answer has come, the rows of the one before stay.
(function (ns) {
  "use strict";

  const map = ns.heatmap;
  const PATIENCE_MS = 1000; // 5,000 names take 5
  const SCRIPT = new URL("filter_worker.js", /** @type {HTMLScriptElement} */ (document.currentScript).src).href;
  const TOO_LONG = "This pattern takes too long: it repeats a repeat, such as (a+)+, or leaves too many ways to try.";
  const NO_WORKER = "The filter cannot run: its script filter_worker.js did not load.";

  let worker = null, isReady = false, timer = 0, asked = 0;
  let wish = null; // {id, text, names, kinds}: the newest that was asked for
  let open = null; // the wish that the worker is at
  let named = null; // names of the last answer; null is all of them
  let problem = "";
  let answers = 0;

  // Why the pattern is not followed; empty where it is.
  ns.layersProblem = () => problem;

  function settle(names, why) {
    if (wish === null) return;
    named = names;
    problem = why;
    answers += 1;
    if (ns.isLayers()) ns.later(ns.drawHeatmap);
  }

  function end(why) {
    worker.terminate();
    worker = open = null;
    settle(null, why);
  }

  function take({ data }) {
    window.clearTimeout(timer);
    if (data === "ready") {
      isReady = true;
      timer = window.setTimeout(tooLong, PATIENCE_MS);
      return;
    }
    const answered = open;
    open = null;
    if (answered !== wish) send();
    else settle(new Set(data.rows.map((row) => answered.names[row])), "");
  }

  function tooLong() {
    const isNewest = open === wish;
    end(TOO_LONG);
    if (!isNewest) send();
  }

  // One at a time: what is typed meanwhile is asked when this one is answered.
  function send() {
    if (open !== null || wish === null) return;
    if (worker === null) {
      isReady = false;
      worker = new Worker(SCRIPT);
      worker.onmessage = take;
      worker.onerror = () => end(NO_WORKER);
    }
    open = wish;
    worker.postMessage(wish);
    if (isReady) timer = window.setTimeout(tooLong, PATIENCE_MS);
  }

  // Asks again where the pattern or the rows have changed.
  function ask(text) {
    if (wish !== null && wish.text === text && wish.names === map.rows) return;
    wish = { id: (asked += 1), text, names: map.rows, kinds: map.kinds };
    try {
      RegExp(text, "i");
    } catch (error) {
      settle(null, error.message.replace(/^Invalid regular expression: /, ""));
      return;
    }
    send();
  }

  // Has the pattern judged, where that is to be done. Returns what changes whenever the lines have to be made anew.
  ns.layersFilterMark = function () {
    if (ns.view.filter) ask(ns.view.filter);
    else if (wish !== null) {
      wish = named = null;
      problem = "";
    }
    return answers;
  };

  // Numbers of the rows to show, in the model's order.
  ns.filteredRows = function () {
    const all = map.rows.map((_, row) => row);
    return named === null ? all : all.filter((row) => named.has(map.rows[row]));
  };
})(window.nanscope);
