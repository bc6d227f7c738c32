// Pinned charts: those of the other views that also stand below the tracks of the overview. A chart is one card, which
// is moved to where it is looked at.
(function (ns) {
  "use strict";

  const homes = new Map(); // id of a chart -> the mark that keeps its place

  const cardOf = (id) => document.querySelector(`.ns-track[data-chart="${CSS.escape(id)}"]`);
  const canBePinned = (id) => ns.templates.charts.some((chart) => chart.id === id) && !ns.isTrack(id);

  function move(id, isOut) {
    const card = cardOf(id), home = homes.get(id), place = ns.byId("pinned");
    if (isOut && card.parentElement !== place) place.append(card);
    if (!isOut && card.parentElement === place) home.after(card);
  }

  function draw() {
    const pinned = ns.view.pinned.filter(canBePinned);
    for (const id of homes.keys()) {
      const isPinned = pinned.includes(id);
      move(id, isPinned && ns.view.tab === "overview");
      const button = cardOf(id).querySelector(".ns-pin");
      ns.setAttribute(button, "aria-pressed", String(isPinned));
      ns.setText(button, isPinned ? "unpin" : "pin");
    }
  }

  function toggle(id) {
    const { pinned } = ns.view;
    ns.change({ pinned: pinned.includes(id) ? pinned.filter((each) => each !== id) : [...pinned, id] });
  }

  ns.startPins = function () {
    const overview = ns.byId("panel-tracks");
    for (const { id } of ns.templates.charts) {
      const card = cardOf(id);
      if (!card || ns.isTrack(id) || overview.contains(card)) continue;
      const home = document.createComment(id);
      card.before(home);
      homes.set(id, home);
      const button = ns.make("button", "ns-link ns-pin", "pin");
      button.type = "button";
      ns.setTitle(button, "Show it below the tracks of the overview, too");
      button.addEventListener("click", () => toggle(id));
      card.append(button);
    }
    for (const name of ["view", "tab"]) ns.on(name, draw);
    draw();
  };
})(window.nanscope);
