// The lines of the view Layers: which rows of the heatmap, under which groups, in which order. Data only; drawn by
// ns_55_layers.js. A line is a row, or a group of rows whose cells are the largest of its rows.
(function (ns) {
  "use strict";

  const map = ns.heatmap;
  const RESORT_MS = 2000; // live values change each step; lines that jump cannot be read
  const isNumber = (part) => /^\d+$/.test(part);

  ns.isLayers = () => document.body.dataset.tab === "layers";

  // Groups of a name, outermost first: paths that end in a number (blocks of a list); else its first part.
  function groupsOf(name) {
    const parts = name.split(".");
    const found = [];
    for (let end = 1; end < parts.length; end++) if (isNumber(parts[end - 1])) found.push(parts.slice(0, end).join("."));
    return found.length || parts.length < 2 ? found : [parts[0]];
  }

  ns.groupsOf = groupsOf;
  const rowOf = () => new Map(map.rows.map((name, row) => [name, row]));
  ns.isFolded = (path) => ns.view.folded.includes(path) !== ns.view.folded.includes("*");

  /** @returns {LayersLine} */
  function leaf(row, depth, parent) {
    const path = map.rows[row];
    const start = parent && path.startsWith(parent + ".") ? parent.length + 1 : 0;
    const isOpen = ns.view.unfolded.includes(path);
    return {
      path, depth, rows: [row], label: path.slice(start) || "(root)", parent, isGroup: false, isOpen, isPinned: false,
      canOpen: map.kinds[row] === "layer", isParameter: map.kinds[row] === "parameter", tensors: map.tensors?.[row] ?? 0,
    };
  }

  // Parameters that are there for the sake of a pinned one, in a layer that is folded.
  const isClosed = (layer) => !ns.view.unfolded.includes(layer) && ns.view.pinnedRows.some((path) => ns.layerOf(path) === layer);

  /** @param {number[]} rows */
  function tree(rows) {
    const own = rowOf();
    // A group of one row would say nothing that the row does not.
    const sizes = new Map();
    for (const row of rows.filter((each) => map.kinds[each] !== "parameter")) {
      for (const path of groupsOf(map.rows[row])) sizes.set(path, (sizes.get(path) || 0) + 1);
    }
    const lines = [], groups = new Map();
    let layer = "";
    for (const row of rows) {
      const name = map.rows[row];
      const isParameter = map.kinds[row] === "parameter";
      if (!isParameter) layer = name;
      else if (isClosed(layer)) continue;
      const chain = groupsOf(isParameter ? layer : name).filter((path) => sizes.get(path) > 1);
      let parent = "", isHidden = false;
      chain.forEach((path, depth) => {
        if (!groups.has(path)) {
          const group = {
            path, depth, parent, rows: [], label: parent ? path.slice(parent.length + 1) : path,
            isGroup: true, isOpen: !ns.isFolded(path), canOpen: true, isParameter: false, isPinned: false, tensors: 0,
          };
          groups.set(path, group);
          if (!isHidden) lines.push(group);
        }
        const group = groups.get(path);
        if (!isParameter) {
          group.rows.push(row);
          group.tensors += map.tensors?.[row] ?? 0;
        }
        isHidden = isHidden || !group.isOpen;
        parent = path;
      });
      if (groups.has(name)) continue; // a module that has rows inside comes before them, or is their group
      if (!isHidden) lines.push(leaf(row, chain.length + (isParameter ? 1 : 0), isParameter ? layer : parent));
    }
    return settled(lines, groups, own);
  }

  // A module with rows inside is one line, its group's, with its own value.
  function settled(lines, groups, own) {
    for (const group of groups.values()) {
      const row = own.get(group.path);
      if (row === undefined) continue;
      group.rows = [row];
      group.tensors = map.tensors?.[row] ?? 0;
    }
    return lines.filter((line) => line.isGroup || !groups.has(line.path));
  }

  // By which a sorted list goes; the largest first, lines without a value last.
  /** @type {Record<string, (codes: Uint16Array) => number>} */
  const SORTS = {
    value: (codes) => {
      const code = codes[ns.layersColumn()] ?? 0;
      return code === 0 ? -1 : ns.isBadCode(code) ? 1e9 : code;
    },
    change: (codes) => {
      const measured = [];
      for (let at = codes.length - 1; at >= 0 && measured.length < 2; at--) if (codes[at]) measured.push(codes[at]);
      if (measured.length < 2) return -1;
      const [now, before] = measured.map(ns.isBadCode);
      return now !== before ? 1e9 : Math.abs(measured[0] - measured[1]);
    },
    bad: (codes) => {
      const at = codes.findIndex(ns.isBadCode);
      return at < 0 ? -Infinity : -at;
    },
  };

  /** @param {number[]} rows */
  function sorted(rows) {
    const measure = SORTS[ns.view.sort];
    const keyed = rows.map((row) => {
      const line = { ...leaf(row, 0, ""), canOpen: false };
      return /** @type {[number, LayersLine]} */ ([measure(ns.lineCodes(line)), line]);
    });
    return keyed.sort((a, b) => b[0] - a[0]).map(([, line]) => line);
  }

  // Rows that stay at the top in the order in which they were pinned; a layer with its parameters below it, but for those
  // that are pinned themselves.
  function pinnedLines() {
    const { pinnedRows } = ns.view;
    const own = rowOf(), lines = [];
    for (const path of pinnedRows) {
      let row = own.get(path);
      if (row === undefined) continue; // another statistic, or another run, has other rows
      lines.push({ ...leaf(row, 0, ""), isPinned: true });
      if (map.kinds[row] !== "layer" || isClosed(path)) continue;
      while (map.kinds[++row] === "parameter") {
        if (!pinnedRows.includes(map.rows[row])) lines.push({ ...leaf(row, 1, path), isPinned: true });
      }
    }
    return lines;
  }

  ns.canPin = (line) => map.rows[line.rows[0]] === line.path;

  // Puts a row above all others, or back.
  ns.togglePinned = function (line) {
    const { pinnedRows } = ns.view;
    if (!ns.canPin(line)) return;
    const others = pinnedRows.filter((path) => path !== line.path);
    ns.change({ pinnedRows: others.length < pinnedRows.length ? others : [...pinnedRows, line.path] });
  };

  let known = "", knownRows = null, sortedAt = 0;

  // All lines, and how many of how many rows they show.
  ns.layersLines = function () {
    const { filter, sort, folded, unfolded, pinnedRows } = ns.view;
    const key = JSON.stringify([filter, ns.layersFilterMark(), sort, folded, unfolded, pinnedRows, map.fields.statistic, sort ? ns.layersColumn.asked?.() : 0]);
    const isOld = key !== known || knownRows !== map.rows;
    if (!isOld && !(Object.hasOwn(SORTS, sort) && performance.now() - sortedAt > RESORT_MS)) return map.lines;
    known = key;
    knownRows = map.rows;
    sortedAt = performance.now();
    ns.forgetLines();
    const rows = ns.filteredRows();
    const isLayer = (row) => map.kinds[row] !== "parameter";
    map.matched = [rows.filter(isLayer).length, map.kinds.filter((kind) => kind !== "parameter").length];
    const pinned = pinnedLines(), above = new Set(pinned.map((line) => line.path));
    const rest = Object.hasOwn(SORTS, sort) ? sorted(rows.filter(isLayer)) : tree(rows);
    map.lines = [...pinned, ...rest.filter((line) => line.isGroup || !above.has(line.path))];
    return map.lines;
  };
})(window.nanscope);
