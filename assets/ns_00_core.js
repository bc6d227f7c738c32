// The one namespace of the page's scripts, and the small things all of them need: events, elements, numbers.
// Dash loads the files of this folder in alphabetical order as classic scripts; each adds to `nanscope`.
window.nanscope = window.nanscope || /** @type {any} */ ({});
(function (ns) {
  "use strict";

  const listeners = new Map();

  // ns.on(name, function) and ns.emit(name, value): how the scripts hear of each other.
  //   message  a decoded message of the live feed (its header)
  //   view     what the user wants to see has changed
  //   tab      another view is open, its name
  //   crosshair  the step under it, or null
  //   range    the step range on screen has changed, [first, end)
  //   rest     a zoom or pan has come to rest, the view
  //   rows     a part of the events' rows has arrived, or they are forgotten
  //   theme    "dark" or "light" is now in force
  //   link     the connection opened or closed
  //   notes    what people have written at steps has changed
  ns.on = function (name, listener) {
    if (!listeners.has(name)) listeners.set(name, []);
    listeners.get(name).push(listener);
  };
  ns.emit = function (name, value) {
    for (const listener of listeners.get(name) || []) listener(value);
  };

  // Whether this page may change anything; the server says so, and refuses what is asked all the same.
  ns.mayChange = () => document.documentElement?.dataset.role !== "view";
  ns.VIEW_ONLY = "This address may only look.";

  // Runs a drawing function before the next frame, once however often it was asked for.
  const due = new Set();
  ns.later = function (draw) {
    if (!due.size) {
      requestAnimationFrame(() => {
        const todo = [...due];
        due.clear();
        for (const each of todo) each();
      });
    }
    due.add(draw);
  };

  ns.byId = (id) => /** @type {any} */ (document.getElementById(id));

  // What cannot be seen, or turns the order of the rest, is its number in brackets: U+202E is "[U+202E]". As
  // dashboard/page/views/visible_text.py.
  const HIDDEN = /[\p{Cc}\p{Cf}\p{Cs}\p{Zl}\p{Zp}]/u;
  const EACH_HIDDEN = new RegExp(HIDDEN.source, "gu");
  const mark = (sign) => `[U+${sign.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}]`;
  ns.visible = (text) => (HIDDEN.test(text) ? text.replace(EACH_HIDDEN, mark) : text);

  // All text that comes from a training goes through these: as visible text, never as markup.
  ns.setText = function (element, text) {
    const shown = ns.visible(text);
    if (element && element.textContent !== shown) element.textContent = shown;
  };
  ns.setAttribute = function (element, name, value) {
    const shown = ns.visible(value);
    if (element && element.getAttribute(name) !== shown) element.setAttribute(name, shown);
  };
  // What hovering shows, line by line.
  ns.setTitle = function (element, ...lines) {
    const shown = lines.filter(Boolean).map(ns.visible).join("\n");
    if (element.title !== shown) element.title = shown;
  };
  ns.make = function (tag, className, text) {
    const element = document.createElement(tag);
    if (className) element.className = className;
    if (text !== undefined) element.textContent = ns.visible(text);
    return element;
  };

  // Sets a property of a Dash component. Only after the page has been laid out.
  ns.setProps = (id, props) => window.dash_clientside.set_props(id, props);

  // Selects. One tells of each value that a script has given it, just as of what the user picks, but later: by then
  // the view may have moved on, and an old value must not bring it back.
  const given = new Map(); // id of a select -> its value, as the scripts know it
  const givenProps = new Map(); // and the rest of it, as text: a property that is set renders the select anew
  const touched = new Set(); // those that the user has been at since
  for (const kind of ["pointerdown", "keydown"]) {
    document.addEventListener(kind, (event) => {
      const { id } = /** @type {Element} */ (event.target);
      if (given.has(id)) touched.add(id);
    }, true);
  }
  ns.give = function (id, value, props = {}) {
    const isNew = given.get(id) !== value, text = JSON.stringify(props);
    // Given again and again, it would replace what the user has picked a moment ago.
    if (isNew || text !== (givenProps.get(id) ?? "{}")) ns.setProps(id, isNew ? { ...props, value } : props);
    given.set(id, value);
    givenProps.set(id, text);
    if (isNew) touched.delete(id);
  };
  ns.isPicked = function (id, value) {
    if (value === given.get(id)) return false;
    const isUsers = touched.has(id) || document.activeElement?.id === id;
    if (isUsers) given.set(id, value);
    else ns.setProps(id, { value: given.get(id) });
    return isUsers;
  };

  const grouped = new Intl.NumberFormat("en-US"); // made once: toLocaleString looks its locale up for each number
  ns.count = (number) => grouped.format(Math.round(number));
  ns.significant = function (number) {
    if (number === 0) return "0";
    const size = Math.abs(number);
    return size >= 1e-3 && size < 1e5 ? String(Number(number.toPrecision(3))) : number.toExponential(2);
  };
  // A number with its unit, three digits; times and sizes in the unit that suits them.
  const SIZES = ["B", "KiB", "MiB", "GiB", "TiB"];
  ns.quantity = function (number, unit, precision = 3) {
    const digits = (value) => String(Number(value.toPrecision(precision)));
    if (unit === "bytes" && number >= 1) {
      const power = Math.min(SIZES.length - 1, Math.floor(Math.log2(number) / 10));
      return `${digits(number / 1024 ** power)} ${SIZES[power]}`;
    }
    if (unit === "s" && number > 0 && number < 1000) {
      const [scale, name] = number >= 1 ? [1, "s"] : number >= 1e-3 ? [1e3, "ms"] : [1e6, "\u00b5s"];
      return `${digits(number * scale)} ${name}`;
    }
    return ns.significant(number);
  };
  ns.seconds = function (seconds) {
    if (seconds < 1) return "now";
    if (seconds < 90) return Math.round(seconds) + " s";
    if (seconds < 5400) return Math.round(seconds / 60) + " min";
    if (seconds < 129600) return Math.round(seconds / 3600) + " h";
    return Math.round(seconds / 86400) + " d";
  };
})(window.nanscope);
