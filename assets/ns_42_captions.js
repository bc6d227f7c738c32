// Names, legends and small print of charts: as annotations of a chart that stands alone, in the gutter of a track. All
// text that comes from a training is escaped for Plotly, or put into the page as text.
(function (ns) {
  "use strict";

  // All text that comes from a training and that Plotly would read as markup.
  ns.escaped = (text) => ns.visible(text).replace(/[&<>"'%]/g, (sign) => `&#${sign.charCodeAt(0)};`);

  // A template of ours with a name put in; templates are small and drawn charts few.
  ns.named = function (template, name) {
    const put = (value) => (typeof value === "string" ? value.replaceAll("{label}", () => name) : value);
    const walk = (value) => {
      if (Array.isArray(value)) return value.map(walk);
      if (value === null || typeof value !== "object") return put(value);
      return Object.fromEntries(Object.entries(value).map(([key, each]) => [key, walk(each)]));
    };
    return walk(template);
  };

  ns.labelOf = (chart, name) => chart.labels[name] ?? name.slice(chart.prefix.length);

  // A series keeps its colour when others come and go; those without a place of their own follow in order.
  ns.colourOf = function (chart, fields, name) {
    const own = chart.names.indexOf(name);
    const others = fields.series.filter((each) => !chart.names.includes(each));
    return (own >= 0 ? own : chart.names.length + others.indexOf(name)) % ns.theme().colours.series.length;
  };

  const MOST_NAMED = 5;

  // Adds the small print at the right of the heading: legend of several lines, marks, and what is pooled.
  ns.captioned = function (layout, chart, fields) {
    const colours = ns.theme().colours;
    const parts = [];
    if (fields.series.length > MOST_NAMED) parts.push(`${fields.series.length} lines, named on hover`);
    else if (fields.series.length > 1) {
      for (const name of fields.series) {
        const colour = colours.series[ns.colourOf(chart, fields, name)];
        parts.push(`<span style="color:${colour}">\u25cf</span> ${ns.escaped(ns.labelOf(chart, name))}`);
      }
    }
    for (const [name, text] of Object.entries(fields.marks || {})) {
      const style = ns.theme().marks[`${chart.id}/${name}`];
      const colour = (style.marker || style.line).color;
      if (text) parts.push(`<span style="color:${colour}">${style.marker ? "\u25bc" : "\u25ac"}</span> ${ns.escaped(text)}`);
    }
    if (fields.note) parts.push(fields.note);
    if (!fields.series.length) parts.push("none recorded in these steps");
    // What does not fit beside the title is left out, from the right; hovering names every line.
    const width = () => 6 * parts.join("   ").replace(/<[^>]*>|&#\d+;/g, "").length;
    while (parts.length > 1 && width() > ns.plotWidth() - 8 * layout.annotations[0].text.length) parts.pop();
    if (ns.isTrack(chart.id)) return drawLegend(chart.id, fields, layout);
    const caption = {
      text: parts.join("   "), x: 1, y: 1, xref: "paper", yref: "paper", xanchor: "right", yanchor: "bottom",
      yshift: 3, showarrow: false, font: { size: 11, color: colours.muted },
    };
    return { ...layout, annotations: [...layout.annotations, caption] };
  };

  // The same in a track's gutter, one below the other.
  function drawLegend(id, fields, layout) {
    const chart = ns.templates.charts.find((each) => each.id === id);
    const items = [];
    const add = (text, colour, sign) => {
      const item = ns.make("div", "ns-legend-line", text);
      ns.setTitle(item, text);
      if (colour) {
        const mark = ns.make("span", "", sign + " ");
        mark.style.color = colour;
        item.prepend(mark);
      }
      items.push(item);
    };
    for (const name of fields.series.length > 1 ? fields.series : []) {
      if (name === chart.names[0]) continue; // the track's own name and colour
      add(ns.labelOf(chart, name), ns.theme().colours.series[ns.colourOf(chart, fields, name)], "\u25cf");
    }
    for (const [name, text] of Object.entries(fields.marks || {})) {
      const style = ns.theme().marks[`${id}/${name}`];
      if (text) add(text, (style.marker || style.line).color, style.marker ? "\u25bc" : "\u25ac");
    }
    if (fields.note) add(fields.note);
    if (!fields.series.length) add("none recorded in these steps");
    ns.byId("legend-" + id).replaceChildren(...items);
    return layout;
  }
})(window.nanscope);
