// Charts of what the user logs: a folded section with one card for each series, made as the series appear.
(function (ns) {
  "use strict";

  let shown = "";

  function card(name) {
    const title = name.slice(ns.templates.logged.prefix.length);
    const holder = ns.make("div", "ns-card ns-track");
    holder.dataset.chart = name;
    holder.setAttribute("role", "group");
    ns.setAttribute(holder, "aria-label", `${title} over steps`);
    const plot = ns.make("div", "ns-plot");
    plot.id = "plot-" + name;
    holder.append(plot, ns.makeGutter(name, title));
    return holder;
  }

  function place({ names, count }) {
    const section = ns.byId("logged");
    section.hidden = !count;
    const more = count > names.length ? `, the first ${names.length} here, all in the exports` : "";
    ns.setText(ns.byId("logged-count"), `${ns.count(count)}${more}`);
    const key = names.join("\n");
    if (key === shown) return;
    shown = key;
    const holder = ns.byId("logged-charts");
    const old = new Map([...holder.children].map((each) => [each.dataset.chart, each]));
    const cards = names.map((name) => old.get(name) || card(name));
    for (const name of old.keys()) if (!names.includes(name)) ns.forgetPlot(name);
    holder.replaceChildren(...cards);
    for (const each of cards) if (!old.has(each.dataset.chart)) ns.observe(each);
  }

  ns.startLogged = function () {
    const section = ns.byId("logged");
    section.open = ns.view.logged;
    section.addEventListener("toggle", () => {
      if (section.open !== ns.view.logged) ns.change({ logged: section.open });
    });
    ns.on("view", () => { section.open = ns.view.logged; });
    ns.on("logged", place);
  };
})(window.nanscope);
