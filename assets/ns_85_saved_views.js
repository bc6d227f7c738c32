// Saved views: addresses of the page that somebody has named. They are kept in this browser, listed in the menu and in
// the palette. One whose run is not there applies to the run that is shown.
(function (ns) {
  "use strict";

  const STORED = "nanscope-views";
  const MOST = 50;
  const MOST_NAME = 80, MOST_QUERY = 8000; // characters
  const OF_RUN = ["run", "rank", "event", "snapshot"]; // parts of an address that mean nothing on another run
  const name = ns.make("input", "ns-note-field");
  const isOfRun = ns.make("input");
  let views = []; // {name, query}, the newest first
  let gone = []; // deleted while the dialog is open: they can be put back
  let renamed = null; // name of the one whose name is being changed

  const dialog = () => ns.byId("views-dialog");
  const isView = (each) => typeof each?.name === "string" && typeof each.query === "string" && each.name !== ""
    && each.name.length <= MOST_NAME && each.query.length <= MOST_QUERY;

  // What is stored may be anything: another page of this address has written it.
  function recall() {
    try {
      const stored = JSON.parse(window.localStorage.getItem(STORED) || "[]");
      views = Array.isArray(stored) ? stored.filter(isView).slice(0, MOST) : [];
    } catch {
      views = []; // private windows may refuse storage
    }
  }

  function keep() {
    try {
      window.localStorage.setItem(STORED, JSON.stringify(views));
    } catch {
      say("This browser cannot store it: it lasts until the page is closed.");
    }
    draw();
  }

  ns.savedViews = () => views;

  ns.openSaved = function ({ query }) {
    const wanted = new URLSearchParams(query);
    const isThere = (ns.runs || []).some((run) => run.run === wanted.get("run"));
    const isOwnChoice = isThere || ns.view.isOwnChoice;
    if (!isThere) {
      for (const part of OF_RUN) wanted.delete(part);
      if (ns.view.run !== null) wanted.set("run", ns.view.run);
      if (ns.view.rank) wanted.set("rank", String(ns.view.rank));
      // Steps that this run has not reached would show nothing.
      if (parseInt(wanted.get("steps"), 10) > (ns.newestStep ?? 0)) wanted.delete("steps");
    }
    ns.visit(wanted, isOwnChoice);
  };

  const say = (text) => ns.setText(ns.byId("views-said"), text);

  function save() {
    const text = name.value.trim();
    if (!text) return say("Give it a name.");
    const query = new URLSearchParams(window.location.search);
    if (!isOfRun.checked) for (const part of OF_RUN) query.delete(part);
    if (String(query).length > MOST_QUERY) return say("This address is too long to save.");
    const others = views.filter((each) => each.name !== text);
    if (others.length >= MOST) return say(`At most ${MOST} views are kept: delete one first.`);
    say(others.length < views.length ? "Replaced the view of that name." : "Saved.");
    views = [{ name: text, query: String(query) }, ...others];
    name.value = "";
    keep();
  }

  function rename(view, text) {
    renamed = null;
    const isTaken = views.some((each) => each !== view && each.name === text);
    if (text && text !== view.name) {
      if (isTaken) say("Another view already has that name.");
      else views = views.map((each) => (each === view ? { ...view, name: text } : each));
    }
    keep();
  }

  function act(text, label, call) {
    const button = ns.make("button", "ns-link", text);
    button.type = "button";
    if (label) ns.setAttribute(button, "aria-label", label);
    button.addEventListener("click", call);
    return button;
  }

  function nameField(view) {
    const field = ns.make("input", "ns-note-field");
    Object.assign(field, { type: "text", maxLength: MOST_NAME, value: view.name, autocomplete: "off" });
    ns.setAttribute(field, "aria-label", `New name of ${view.name}`);
    let isDone = false;
    const close = (text) => { if (!isDone) { isDone = true; rename(view, text); } };
    field.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" && event.key !== "Escape") return;
      event.preventDefault();
      event.stopPropagation();
      close(event.key === "Enter" ? field.value.trim() : view.name);
    });
    field.addEventListener("blur", () => close(field.value.trim()));
    return field;
  }

  function line(view) {
    const item = ns.make("li", "ns-note-line");
    if (renamed === view.name) {
      const field = nameField(view);
      item.append(field);
      return item;
    }
    const open = act(view.name, "", () => { dialog().close(); ns.openSaved(view); });
    open.classList.add("ns-note-text");
    item.append(
      open, act("Rename", `Rename ${view.name}`, () => startRename(view)),
      act("Delete", `Delete ${view.name}`, () => { gone.push(view); views = views.filter((each) => each !== view); keep(); }),
    );
    return item;
  }

  function startRename(view) {
    renamed = view.name;
    draw();
    const field = ns.byId("views-list").querySelector("input");
    field.focus();
    field.select();
  }

  function goneLine(view) {
    const item = ns.make("li", "ns-note-line");
    const back = () => {
      gone = gone.filter((each) => each !== view);
      if (views.length < MOST && !views.some((each) => each.name === view.name)) views = [view, ...views];
      keep();
    };
    item.append(ns.make("span", "ns-note-text", `Deleted ${view.name}`), act("Undo", `Put ${view.name} back`, back));
    return item;
  }

  function menuItem(view) {
    const item = ns.make("button", "ns-menu-item ns-menu-view", view.name);
    item.type = "button";
    item.setAttribute("role", "menuitem");
    item.tabIndex = -1;
    item.addEventListener("click", () => ns.openSaved(view));
    return item;
  }

  function draw() {
    ns.byId("menu-views").replaceChildren(...views.map(menuItem));
    ns.byId("menu-views").parentElement.hidden = !views.length;
    ns.byId("views-list").replaceChildren(...views.map(line), ...gone.map(goneLine));
  }

  function makeFields() {
    Object.assign(name, { type: "text", maxLength: MOST_NAME, autocomplete: "off", placeholder: "Name of this view" });
    ns.setAttribute(name, "aria-label", "Name of this view");
    name.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" || event.isComposing) return;
      event.preventDefault();
      save();
    });
    Object.assign(isOfRun, { type: "checkbox", checked: true });
    const label = ns.make("label", "ns-views-run");
    label.append(isOfRun, " including its run; otherwise the view applies to the run shown");
    ns.byId("views-place").append(name, label);
  }

  ns.startSavedViews = function () {
    makeFields();
    recall();
    draw();
    ns.byId("save-view").addEventListener("click", () => {
      recall(); // another tab may have saved one
      gone = [];
      renamed = null;
      say("");
      draw();
      dialog().showModal();
      name.focus();
    });
    ns.byId("views-save").addEventListener("click", save);
    ns.byId("views-close").addEventListener("click", () => dialog().close());
    window.addEventListener("storage", ({ key }) => { if (key === STORED) { recall(); draw(); } });
  };
})(window.nanscope);
