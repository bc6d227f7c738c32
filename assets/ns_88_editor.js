// Source lines in an editor: a link beside each file and line, where somebody has chosen an editor in the menu. File names
// come from trainings: only an absolute path without hidden characters becomes part of an address, escaped, and only of
// a scheme that stands here.
(function (ns) {
  "use strict";

  const STORED = "nanscope-editor";
  const SCHEMES = ["vscode", "vscode-insiders", "vscodium", "cursor", "windsurf", "zed", "idea", "pycharm", "subl", "txmt", "mvim"];
  const EDITORS = [
    ["", "off", ""],
    ["vscode", "VS Code", "vscode://file{path}:{line}"],
    ["cursor", "Cursor", "cursor://file{path}:{line}"],
    ["zed", "Zed", "zed://file{path}:{line}"],
    ["pycharm", "PyCharm", "pycharm://open?file={path}&line={line}"],
    ["idea", "IntelliJ IDEA", "idea://open?file={path}&line={line}"],
    ["own", "another", ""],
  ];
  const LONGEST_PATH = 4096, LONGEST_TEMPLATE = 200; // characters
  const own = ns.make("input", "ns-note-field");
  let chosen = ""; // first of one of EDITORS
  let template = ""; // the user's own

  // What is wrong with a template; empty where nothing is.
  ns.templateProblem = function (text) {
    const found = /^([a-z][a-z-]*):\/\/[\w.~!$&'()*+,;=:@/?%{}-]*$/.exec(text);
    if (!found || text.length > LONGEST_TEMPLATE) return "It looks like vscode://file{path}:{line}.";
    if (!SCHEMES.includes(found[1])) return `It begins with one of ${SCHEMES.join(", ")}.`;
    if (text.split("{path}").length !== 2 || text.split("{line}").length !== 2) return "It has {path} and {line}, each once.";
    return "";
  };

  // An absolute path of this machine, nothing hidden in it: no host, no way up.
  function isLocal(file) {
    if (typeof file !== "string" || file.length > LONGEST_PATH || ns.visible(file) !== file) return false;
    if (!/^\/(?!\/)/.test(file) && !/^[A-Za-z]:[\\/](?![\\/])/.test(file)) return false;
    return !file.split(/[\\/]/).includes("..");
  }

  // The address that opens a line; null where there is none.
  ns.editorAddress = function (file, line) {
    const pattern = chosen === "own" ? template : EDITORS.find(([id]) => id === chosen)[2];
    if (!pattern || ns.templateProblem(pattern) || !isLocal(file) || !Number.isSafeInteger(line) || line < 1) return null;
    const parts = file.startsWith("/") ? file.slice(1).split("/") : file.split(/[\\/]/);
    const path = "/" + parts.map(encodeURIComponent).join("/");
    // Functions: a path may hold "$&".
    const address = pattern.replace("{path}", () => path).replace("{line}", () => String(line));
    return SCHEMES.includes(new URL(address).protocol.slice(0, -1)) ? address : null;
  };

  function mark(place) {
    const { file, line } = place.dataset;
    const address = place.hidden ? null : ns.editorAddress(file, Number(line));
    let link = place.querySelector("a");
    if (address === null) return link?.remove();
    if (!link) {
      link = ns.make("a", "ns-link ns-open-line", "Open");
      place.append(link);
    }
    if (link.getAttribute("href") !== address) link.setAttribute("href", address);
    ns.setAttribute(link, "aria-label", `Open ${file}:${line} in the editor`);
    ns.setTitle(link, `${file}:${line}`, "Open in the editor");
  }

  ns.markLines = () => { for (const place of document.querySelectorAll(".ns-source")) mark(place); };

  // Where the verdict's fault began.
  ns.drawVerdictLine = function (source) {
    const place = ns.byId("verdict-source");
    place.hidden = !source;
    if (source) {
      const [file, line] = source;
      Object.assign(place.dataset, { file, line: String(line) });
      const button = place.querySelector("button");
      button.dataset.text = ns.visible(`${file}:${line}`);
      ns.setTitle(button, `${file}:${line}`, "Copy path and line");
    }
    mark(place);
  };

  function keep() {
    try {
      window.localStorage.setItem(STORED, JSON.stringify([chosen, template]));
    } catch {
      // It holds for this page then.
    }
    ns.setText(ns.byId("editor-name"), EDITORS.find(([id]) => id === chosen)[1]);
    ns.markLines();
  }

  function recall() {
    try {
      const [id, text] = JSON.parse(window.localStorage.getItem(STORED) || "[]");
      if (EDITORS.some(([known]) => known === id)) chosen = id;
      if (typeof text === "string" && !ns.templateProblem(text)) template = text;
    } catch {
      // Private windows may refuse storage; then there is no editor.
    }
  }

  function say() {
    const text = chosen === "own" ? ns.templateProblem(own.value) : "";
    ns.setText(ns.byId("editor-said"), text);
    own.parentElement.hidden = chosen !== "own";
  }

  /** @param {string[]} editor its id and title */
  function choice([id, title]) {
    const label = ns.make("label", "ns-editor-choice");
    const radio = ns.make("input");
    Object.assign(radio, { type: "radio", name: "ns-editor", value: id, checked: id === chosen });
    radio.addEventListener("change", () => { chosen = id; keep(); say(); });
    label.append(radio, ` ${title}`);
    return label;
  }

  function makeFields() {
    Object.assign(own, { type: "text", maxLength: LONGEST_TEMPLATE, value: template, placeholder: "vscode://file{path}:{line}", spellcheck: false, autocomplete: "off" });
    ns.setAttribute(own, "aria-label", "Address that opens a line, with {path} and {line}");
    own.addEventListener("input", () => {
      if (!ns.templateProblem(own.value)) template = own.value;
      keep();
      say();
    });
    const place = ns.make("div", "ns-editor-own");
    place.append(own);
    ns.byId("editor-choices").append(...EDITORS.map(choice), place);
  }

  ns.startEditor = function () {
    recall();
    makeFields();
    say();
    keep();
    const dialog = ns.byId("editor-dialog");
    ns.byId("editor").addEventListener("click", () => dialog.showModal());
    ns.byId("editor-close").addEventListener("click", () => dialog.close());
    dialog.addEventListener("click", ({ target }) => target === dialog && dialog.close()); // beside it
    const watched = { childList: true, subtree: true, attributes: true, attributeFilter: ["data-file", "data-line"] };
    new MutationObserver(() => ns.later(ns.markLines)).observe(ns.byId("event-content"), watched);
  };
})(window.nanscope);
