// How lists put runs together: models that one run makes one after the other are a series, which is one row that
// unfolds; the runs of one process are a group. For the picker (ns_62) and the table of all runs (ns_65). Pure.
(function (ns) {
  "use strict";

  ns.runState = (run) => (run.ranks.some(({ state }) => state === "running") ? "running" : run.ranks.map(({ state }) => state).sort()[0] || "silent");
  const scriptOf = (run) => run.name.replace(/ \(model \d+\)$/, "").replace(` (${run.model})`, "");

  // Which models are found, of all of a series.
  function modelsOf(found, all) {
    const numbers = found.map(({ member }) => member + 1);
    const first = Math.min(...numbers), last = Math.max(...numbers);
    if (found.length < all.length) return `${ns.count(found.length)} of ${ns.count(all.length)} models`;
    return last - first + 1 === found.length ? `models ${first} to ${last}` : `${ns.count(found.length)} models`;
  }

  // A series has all its models, the first one first, and those that are found; its name says the former, its title the latter.
  function partOf([run, models], isFound, isAlone) {
    const found = models.filter(isFound), [first] = models;
    const isSeries = models.length > 1;
    const called = isAlone ? scriptOf(first) : first.model || scriptOf(first);
    const [name, title] = [models, found].map((some) => (isSeries && some.length ? `${called} \u00b7 ${modelsOf(some, models)}` : ""));
    return { run, models, found, isSeries, name, title };
  }

  // What a run is called below the title of its series, or of its group.
  function nameIn(run, part, scripts) {
    if (part.isSeries) return `model ${run.member + 1}`;
    // Trainings one after the other that somebody has named, in a sweep say, keep their names.
    return scripts.size > 1 || !run.model ? run.name : run.model;
  }

  // The groups in which something is found, the newest first; in each its runs and series, in the order in which they
  // began. What belongs together is seen in all runs, so that a search leaves each model below its title.
  ns.groupRuns = function (runs, isFound) {
    const groups = new Map();
    for (const run of runs) {
      if (!groups.has(run.group)) groups.set(run.group, new Map());
      const parts = groups.get(run.group), key = run.series ?? run.run;
      parts.set(key, [run, ...(parts.get(key) ?? [])]);
    }
    return [...groups].map(([group, parts]) => {
      const known = [...parts].reverse().sort(([, [one]], [, [other]]) => one.started - other.started);
      const scripts = new Set(known.map(([, [first]]) => scriptOf(first)));
      const isAlone = known.length === 1;
      return {
        group, script: scripts.size === 1 ? [...scripts][0] : "", together: isAlone ? "" : `${known.length} runs of one process`,
        parts: known.map((part) => partOf(part, isFound, isAlone)).filter(({ found }) => found.length),
        nameOf: (run, part) => (isAlone && !part.isSeries ? run.name : nameIn(run, part, scripts)),
      };
    }).filter(({ parts }) => parts.length);
  };

  const SHORTEST_ID = 4; // shorter words are in the times of which ids are made

  // Whether each word of a search is in a run. A number is one from its first digit on: 4 finds model 4 and 40, not 14.
  ns.isFoundBy = function (search, run, id, texts) {
    const text = texts.join(" ").toLowerCase();
    const isIn = (word) => (/^\d+$/.test(word) ? new RegExp(`(?<!\\d)${word}`).test(text) : text.includes(word));
    return search.toLowerCase().split(/\s+/).every((word) => run === word || isIn(word) || (word.length >= SHORTEST_ID && id.toLowerCase().includes(word)));
  };

  // How many runs there are, and how many of them a search has found; where runs have series, of their models.
  ns.countRuns = function (runs, found) {
    const series = new Set(runs.map((run) => run.series ?? run.run)).size;
    const several = (count, what) => `${ns.count(count)} ${what}${count === 1 ? "" : "s"}`;
    const hasSeries = series < runs.length;
    if (found < runs.length) return `${ns.count(found)} of ${several(runs.length, hasSeries ? "model" : "run")}`;
    return several(series, "run") + (hasSeries ? `, ${several(runs.length, "model")}` : "");
  };

  // What a list of runs lacks: of all that there are the page gets the newest, and draws the first of them; 0 draws all.
  ns.leftOut = function (known, total, drawn) {
    const isPart = total > known;
    return (isPart ? ` (the newest of ${ns.count(total)}; the run picker has all)` : "") +
      (drawn ? `; the newest ${ns.count(drawn)} are shown, the search looks at ${isPart ? "the newest " + ns.count(known) : "all"}` : "");
  };
})(window.nanscope);
