// A picture of the view that is open, as it stands on screen: canvases, the texts beside them, lines over them. At its
// foot it says which run and steps it shows, and what is pooled.
(function (ns) {
  "use strict";

  const SCALE = 2; // pixels of the picture for one of the page
  const PAD_PX = 12, FOOT_PX = 28;
  const NOT_SHOWN = "button.ns-button, input, .ns-axis-kinds, .ns-selection, .ns-hidden, option";

  const isSeen = (element) => element.checkVisibility({ visibilityProperty: true }) && !element.closest(NOT_SHOWN);

  // The nearest element that cuts what is inside it.
  function cutting(element) {
    while (element !== document.body && getComputedStyle(element).overflowX === "visible") element = element.parentElement;
    return element;
  }

  // Texts that are cut on screen are cut in the picture.
  function drawText(context, node, origin) {
    const range = document.createRange();
    range.selectNodeContents(node);
    const style = getComputedStyle(node.parentElement);
    const text = node.textContent;
    context.font = `${style.fontWeight} ${style.fontSize} ${style.fontFamily}`;
    context.fillStyle = style.color;
    context.textBaseline = "middle";
    const cut = cutting(node.parentElement).getBoundingClientRect();
    context.save();
    context.beginPath();
    context.rect(cut.left - origin.left, cut.top - origin.top, cut.width, cut.height);
    context.clip();
    // One rectangle for each line that it is wrapped to.
    const rects = [...range.getClientRects()];
    if (rects.length === 1) context.fillText(text, rects[0].left - origin.left, (rects[0].top + rects[0].bottom) / 2 - origin.top);
    else wrapped(context, text, rects, origin);
    context.restore();
  }

  function wrapped(context, text, rects, origin) {
    const words = text.split(/(?<=\s)/);
    for (const rect of rects) {
      let line = "";
      while (words.length && (!line || context.measureText(line + words[0]).width <= rect.width + 2)) line += words.shift();
      context.fillText(line, rect.left - origin.left, (rect.top + rect.bottom) / 2 - origin.top);
    }
  }

  function drawTexts(context, root, origin) {
    const walker = document.createTreeWalker(root, NodeFilter.SHOW_TEXT);
    while (walker.nextNode()) {
      const node = walker.currentNode;
      if (node.textContent.trim() && isSeen(node.parentElement)) drawText(context, node, origin);
    }
    for (const select of root.querySelectorAll("select")) {
      if (!isSeen(select)) continue;
      const box = select.getBoundingClientRect(), style = getComputedStyle(select);
      context.font = `${style.fontWeight} ${style.fontSize} ${style.fontFamily}`;
      context.fillStyle = style.color;
      context.fillText(select.selectedOptions[0]?.text ?? "", box.left - origin.left, (box.top + box.bottom) / 2 - origin.top);
    }
  }

  function drawCanvases(context, root, origin) {
    for (const canvas of root.querySelectorAll("canvas")) {
      if (!isSeen(canvas) || !canvas.width) continue;
      const box = canvas.getBoundingClientRect();
      context.drawImage(canvas, box.left - origin.left, box.top - origin.top, box.width, box.height);
    }
    const { nan, inf, unmeasured } = ns.theme().colours;
    for (const swatch of root.querySelectorAll(".ns-swatch")) {
      const box = swatch.getBoundingClientRect();
      const colour = swatch.matches(".ns-swatch-nan") ? nan : swatch.matches(".ns-swatch-inf") ? inf : unmeasured;
      if (isSeen(swatch)) fill(context, colour, box.left - origin.left, box.top - origin.top, box.width, box.height);
    }
    for (const line of root.querySelectorAll(".ns-origin-line, .ns-crosshair, .ns-card, .ns-scale-bar, .ns-layers-bar")) {
      if (!isSeen(line)) continue;
      const box = line.getBoundingClientRect(), style = getComputedStyle(line);
      if (line.matches(".ns-scale-bar, .ns-layers-bar")) drawScale(context, box, origin);
      else if (line.matches(".ns-card")) fill(context, style.borderBottomColor, box.left - origin.left, box.bottom - origin.top - 1, box.width, 1);
      else fill(context, style.backgroundColor, box.left - origin.left, box.top - origin.top, box.width, box.height);
    }
  }

  function fill(context, colour, ...box) {
    context.fillStyle = colour;
    context.fillRect(...box);
  }

  function drawScale(context, box, origin) {
    const gradient = context.createLinearGradient(box.left - origin.left, 0, box.right - origin.left, 0);
    const { cividis } = ns.templates;
    cividis.forEach((colour, at) => gradient.addColorStop(at / (cividis.length - 1), colour));
    fill(context, gradient, box.left - origin.left, box.top - origin.top, box.width, box.height);
  }

  // What the picture shows, in words.
  ns.pictureWords = function () {
    const [first, end] = ns.range || [0, 0];
    const run = ns.runs?.find((each) => each.run === ns.view.run);
    const isHeatmap = ns.byId("heatmap-canvas").checkVisibility();
    const note = isHeatmap ? ns.heatmap.fields?.note || "every step is one column" : "";
    return [
      run?.name ?? ns.view.run, `rank ${ns.view.rank}`, `steps ${ns.count(first)} to ${ns.count(Math.max(first, end - 1))}`,
      note, new Date().toLocaleString(), "nanscope",
    ].filter(Boolean).map(ns.visible).join(" \u00b7 ");
  };

  // Resolves to a canvas of the view that is open.
  ns.picture = function () {
    const panel = [...document.querySelectorAll(".ns-panel")].find((each) => !each.hidden);
    const verdict = ns.byId("verdict"), box = panel.getBoundingClientRect(), top = verdict.getBoundingClientRect();
    const width = box.width + 2 * PAD_PX, height = top.height + box.height + FOOT_PX + 2 * PAD_PX;
    const canvas = document.createElement("canvas");
    Object.assign(canvas, { width: width * SCALE, height: height * SCALE });
    const context = canvas.getContext("2d");
    context.scale(SCALE, SCALE);
    const style = getComputedStyle(document.body);
    fill(context, style.backgroundColor, 0, 0, width, height);
    drawTexts(context, verdict, { left: top.left - PAD_PX, top: top.top - PAD_PX });
    const origin = { left: box.left - PAD_PX, top: box.top - PAD_PX - top.height };
    drawCanvases(context, panel, origin);
    drawTexts(context, panel, origin);
    context.font = ns.FONT;
    context.fillStyle = ns.theme().colours.muted;
    context.textBaseline = "middle";
    context.fillText(ns.pictureWords(), PAD_PX + 16, height - PAD_PX - FOOT_PX / 2 + 4);
    return canvas;
  };

  ns.exportPng = function () {
    if (ns.view.run === null || !ns.range) return;
    ns.picture().toBlob((blob) => {
      const link = document.createElement("a");
      link.href = URL.createObjectURL(blob);
      link.download = `${ns.view.run}-${ns.view.tab}.png`;
      link.click();
      window.setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
    }, "image/png");
  };
})(window.nanscope);
