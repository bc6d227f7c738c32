// The row in which a fault began: a diamond at its step in the heatmap, and its name in the same colour. The module is the
// one that the verdict names.
(function (ns) {
  "use strict";

  const LINE = /:\d+$/; // the other code of a verdict is a line of a file
  /** @type {string | null} */
  let origin = null;
  let step = 0;

  // Whether a line of names stands for the origin's row: it alone, or a folded group that has it.
  /** @param {string} path @param {boolean} isGroup */
  ns.isOrigin = (path, isGroup) => origin !== null && (path === origin || (isGroup && origin.startsWith(path + ".")));
  ns.originName = () => origin;

  // The place of the origin's row among all that are on screen; [-1, n] where it is not.
  function placeOf() {
    if (ns.isLayers()) {
      const lines = ns.visibleLines();
      return [lines.findIndex((line) => ns.isOrigin(line.path, line.isGroup && !line.isOpen)), lines.length];
    }
    const { rows, shown } = ns.heatmap;
    return [shown.findIndex((row) => rows[row] === origin), shown.length];
  }

  function draw() {
    const mark = ns.byId("origin-mark"), box = ns.heatmapBox();
    const [at, count] = origin === null || ns.isFlow() || !box ? [-1, 0] : placeOf();
    const share = at < 0 ? -1 : ns.axis().of(step - 0.5);
    mark.hidden = share < 0 || share > 1;
    if (mark.hidden) return;
    mark.style.left = box.l + share * box.w + "px";
    mark.style.top = box.t + ((at + 0.5) * box.h) / count + "px";
  }

  ns.startOrigin = function () {
    ns.on("message", ({ run, verdict }) => {
      if (run === null || run !== ns.view.run || !verdict) return;
      const module = verdict.parts.find(([text, isCode]) => isCode && !LINE.test(text));
      origin = verdict.severity === "critical" && module && verdict.step !== null ? module[0] : null;
      step = verdict.step ?? 0;
    });
    ns.on("heatmap", draw);
  };
})(window.nanscope);
