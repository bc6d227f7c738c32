// The verdict line: the largest sentence on a broken run, grey where nothing is wrong; and the window's title. The
// sentence comes from the server (dashboard/page/views/verdict.py).
(function (ns) {
  "use strict";

  const ICONS = { critical: "\u25c6", warning: "\u25b2", none: "\u2713" };
  const LINE = /:\d+$/;
  /** @type {Header | null} */
  let newest = null; // header of the run that is shown
  let shown = "";
  let announced = "";

  // Where there is no room for all, a module's name loses its beginning, as modules differ at the end; a line is never
  // cut (header.css).
  /** @param {Verdict["parts"]} parts */
  function sentence(parts) {
    const [what, ...rest] = parts.map(([text, isCode]) => {
      if (!isCode) return ns.make("span", "", text);
      const code = ns.make("code", LINE.test(text) ? "ns-code-line" : "");
      const name = ns.make("bdi", "", text);
      name.dir = "ltr";
      code.append(name);
      return code;
    });
    if (!rest.length) return [what];
    const where = ns.make("span", "ns-verdict-where");
    where.append(...rest);
    return [what, where];
  }

  function plural(number, word) {
    return number ? [`${ns.count(number)} ${word}${number === 1 ? "" : "s"}`] : [];
  }

  // What stands at the line's end: of a fault when and where it was, else what there was besides.
  /** @param {Header} header @param {number} now */
  function facts(header, now) {
    const { severity, time, rank, step, counts } = header.verdict;
    const others = counts[0] + counts[1] > 1 ? [...plural(counts[0], "critical event"), ...plural(counts[1], "warning")] : [];
    if (severity === "none") return [...plural(counts[0], "fault"), ...plural(counts[1], "warning"), ...cost(header)];
    if (time === null) return [...others, ...cost(header)];
    const since = header.newestStep === null || step === null ? 0 : Math.max(0, header.newestStep - step);
    const age = now - time;
    return [
      ...(age >= 0 ? [age < 1 ? "now" : `${ns.seconds(age)} ago`] : []),
      ...(document.body.classList.contains("ns-one-rank") ? [] : [`rank ${rank}`]),
      ...plural(since, "step").map((text) => text + " since"),
      ...(severity === "warning" ? others : []),
    ];
  }

  // What the probe takes of a step, by its own clock: its budget is part of the promise.
  /** @param {Header} header */
  function cost({ tiles }) {
    const tile = tiles.find((each) => each.id === "probe");
    return tile && tile.unit ? [`probe ${tile.value} ${tile.unit}`] : [];
  }

  // Facts that find no room go to a line below, which nobody sees: whole ones, never a part of one.
  const unbroken = (fact, at) => (at ? "\u00b7 " + fact : fact).replaceAll(" ", "\u00a0");

  function draw() {
    const line = ns.byId("verdict");
    line.hidden = newest === null;
    if (newest === null) return;
    const { verdict } = newest;
    const key = JSON.stringify([verdict.parts, verdict.severity, verdict.event, verdict.consequences, verdict.source]);
    if (key !== shown) {
      shown = key;
      ns.setAttribute(line, "data-severity", verdict.severity);
      ns.setText(ns.byId("verdict-icon"), ICONS[verdict.severity]);
      const text = ns.byId("verdict-text");
      text.replaceChildren(...sentence(verdict.parts));
      text.disabled = verdict.event === null;
      ns.setTitle(text, verdict.event === null ? "" : verdict.parts.map(([part]) => part).join(""));
      ns.drawVerdictLine(verdict.source);
      ns.byId("verdict-consequences").hidden = verdict.consequences === 0;
      const more = plural(verdict.consequences, "consequence").join("");
      ns.setText(ns.byId("verdict-more"), more);
      line.style.setProperty("--ns-more", more.length + "ch"); // its room beside the first line, on a phone (header.css)
    }
    ns.setText(ns.byId("verdict-facts"), facts(newest, ns.now()).map(unbroken).join(" "));
  }

  /** @param {Header} header */
  function drawTitle({ name, newestStep, verdict }) {
    const step = newestStep === null ? "" : ` \u00b7 step ${ns.count(newestStep)}`;
    const isBad = verdict.severity === "critical";
    const text = ns.visible((isBad ? `\u26a0 ${verdict.title} \u00b7 ${name}` : name + step) + " \u2013 nanscope");
    if (document.title !== text) document.title = text;
    // Screen readers hear of a new critical event once; what else is read out stays.
    const words = isBad ? verdict.parts.map(([part]) => part).join("") : "";
    if (words === announced) return;
    announced = words;
    ns.setText(ns.byId("announcer"), words);
  }

  ns.startVerdict = function () {
    function open() {
      if (!newest) return;
      const { event, run } = newest.verdict;
      // Of another model of the run, which is shown with it.
      if (ns.view.run !== run && ns.runs?.some((one) => one.run === run)) ns.chooseRun(run, true, { event });
      else ns.openEvent(event);
    }
    ns.byId("verdict-text").addEventListener("click", open);
    ns.byId("verdict-consequences").addEventListener("click", () => {
      if (ns.view.event === null) open();
      else ns.moveEvent(1);
    });
    ns.on("message", (header) => {
      if (header.run !== null && header.run !== ns.view.run) return;
      newest = header.run === null ? null : header;
      draw();
      if (newest) drawTitle(newest);
    });
    window.setInterval(draw, 1000);
  };
})(window.nanscope);
