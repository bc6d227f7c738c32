// The strip at the right of the rows in the view Ranks: all ranks at once, however many there are. It says where those
// that stand out are, and scrolls there; it is drawn where the rows do not fit.
(function (ns) {
  "use strict";

  const LAST_TICK = 0.97; // of the axis: what stands further right would be cut
  const LEAST_MARK = 5, NEAR = 6; // pixels: of a rank that stands out, and around it where a click picks it
  const shown = ns.ranks;
  let drag = null; // {y, moved} while the pointer is down

  const body = () => ns.byId("ranks-body");
  const strip = () => ns.byId("ranks-map");

  // What of the rows is in the window: from which pixel on, and how many.
  ns.rankWindow = () => ({ top: body().scrollTop, height: Math.min(body().clientHeight, shown.height) });
  ns.rankIsSeen = function (row) {
    const { top, height } = ns.rankWindow();
    return row.top + row.height > top && row.top < top + height;
  };
  ns.scrollToRank = function (rank) {
    const row = shown.rows.find((each) => each.rank === rank), { top, height } = ns.rankWindow();
    if (!row || (row.top >= top && row.top + row.height <= top + height)) return;
    body().scrollTop = row.top + row.height / 2 - height / 2;
  };

  // Rows that stand out, the gravest last: what is drawn last is seen.
  function marked() {
    const columns = ns.rankColumns().length, { severities, nan, inf } = ns.theme().colours;
    const found = [];
    for (const row of shown.rows) {
      const mark = ns.rankMark(row.rank);
      let bad = 0;
      for (let column = 0; column < columns && bad !== 2; column++) {
        const value = ns.rankValue(row.at, column);
        if (Number.isNaN(value)) bad = 2;
        else if (value === Infinity) bad = 1;
      }
      if (mark?.kind === "bad") found.push({ row, order: 3, colour: nan });
      else if (bad) found.push({ row, order: 2, colour: bad === 2 ? nan : inf });
      else if (mark) found.push({ row, order: 1, colour: severities[1] });
    }
    return found.sort((a, b) => a.order - b.order);
  }

  ns.drawRankMap = function () {
    const canvas = strip(), { top, height } = ns.rankWindow();
    canvas.hidden = shown.height <= height + 1;
    body().classList.toggle("ns-has-map", !canvas.hidden);
    if (canvas.hidden) return;
    const scale = window.devicePixelRatio || 1, width = canvas.clientWidth, share = height / shown.height;
    canvas.style.height = height + "px";
    canvas.width = Math.round(width * scale);
    canvas.height = Math.round(height * scale);
    const context = canvas.getContext("2d"), { unmeasured, muted, text } = ns.theme().colours;
    context.scale(scale, scale);
    context.fillStyle = unmeasured;
    context.fillRect(0, 0, width, height);
    context.fillStyle = muted;
    context.globalAlpha = 0.35;
    context.fillRect(0, top * share, width, Math.max(2, height * share));
    context.globalAlpha = 1;
    shown.marked = marked();
    for (const { row, colour } of shown.marked) {
      const tall = Math.max(LEAST_MARK, row.height * share);
      context.fillStyle = colour;
      context.fillRect(1, Math.min(height - tall, Math.max(0, (row.top + row.height / 2) * share - tall / 2)), width - 2, tall);
    }
    const picked = shown.rows.find((row) => row.rank === ns.view.rank);
    context.strokeStyle = text || muted;
    if (picked) context.strokeRect(0.5, Math.round((picked.top + picked.height / 2) * share) - 1.5, width - 1, 3);
  };

  // The row that stands out next to the pointer, the gravest first; null where none is near.
  function nearest(y) {
    const share = ns.rankWindow().height / shown.height;
    const near = shown.marked.filter(({ row }) => Math.abs((row.top + row.height / 2) * share - y) <= NEAR);
    return near.length ? near[near.length - 1].row : null;
  }

  const yOf = (event) => event.clientY - strip().getBoundingClientRect().top;

  function scrollTo(y) {
    const { height } = ns.rankWindow();
    body().scrollTop = (y / height) * shown.height - height / 2;
  }

  function hover(event) {
    const y = yOf(event), row = nearest(y), tooltip = ns.byId("tooltip");
    if (drag && Math.abs(y - drag.y) > 3) drag.moved = true;
    if (drag?.moved) scrollTo(y);
    tooltip.hidden = !row || Boolean(drag?.moved);
    strip().style.cursor = row ? "pointer" : "default";
    if (tooltip.hidden) return;
    ns.showRankTip(event, row, ns.rankColumn());
  }

  ns.startRankMap = function () {
    const canvas = strip();
    canvas.addEventListener("pointerdown", (event) => {
      drag = { y: yOf(event), moved: false };
      canvas.setPointerCapture(event.pointerId);
    });
    canvas.addEventListener("pointermove", hover);
    canvas.addEventListener("pointerleave", () => { ns.byId("tooltip").hidden = true; });
    canvas.addEventListener("pointerup", () => {
      const ended = drag;
      drag = null;
      if (!ended || ended.moved) return;
      const row = nearest(ended.y);
      if (!row) return scrollTo(ended.y);
      ns.byId("tooltip").hidden = true;
      ns.pickRank(row.rank);
      ns.scrollToRank(row.rank);
    });
    canvas.addEventListener("pointercancel", () => { drag = null; });
    canvas.addEventListener("wheel", (event) => { body().scrollTop += event.deltaY; }, { passive: true });
  };

  // The step axis below the picture.
  ns.drawRankAxis = function () {
    const inside = ns.axisTicks(ns.byId("ranks-canvas").clientWidth).filter((tick) => tick.share <= LAST_TICK);
    ns.byId("ranks-axis").replaceChildren(...inside.map(({ share: at, text }) => {
      const tick = ns.make("span", "", text);
      tick.style.left = `max(${text.length / 2}ch, ${at * 100}%)`; // the first one is not cut
      return tick;
    }));
  };
})(window.nanscope);
