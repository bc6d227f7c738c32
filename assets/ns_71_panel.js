// What is in the event panel, once it is there: it stays as it was read while it is brought up to date; its texts
// are copied. Dash draws the whole panel anew whenever its event changes, with every fold as at first.
(function (ns) {
  "use strict";

  const FOCUSABLE = "summary, button, [tabindex]";
  let event = null; // that the rest is about
  let scroll = 0;
  let focus = null; // number among what can have the focus; null while it is elsewhere
  const folds = new Map(); // name of a fold -> whether it is open

  ns.panelShown = () => document.querySelector("#event-content > article");

  // Sections come and go with what is known, so a fold is counted within its own; one outside of them is in the
  // panel's head. The panel's own label is no name: it is the headline, which may change.
  /** @param {HTMLDetailsElement} fold */
  function foldName(fold) {
    const section = fold.closest("section");
    const folds = [...(section || ns.panelShown()).querySelectorAll("details")];
    return `${section ? section.getAttribute("aria-label") : ""}/${folds.indexOf(fold)}`;
  }

  // Before the browser paints: a new event from its top, the same one as it was.
  function arrive() {
    const content = ns.byId("event-content");
    const shown = ns.panelShown()?.dataset.event ?? null;
    content.style.visibility = "";
    if (shown !== event) {
      event = shown;
      folds.clear();
      focus = null;
      scroll = 0;
    }
    for (const fold of content.querySelectorAll("details")) {
      const isOpen = folds.get(foldName(fold));
      if (isOpen !== undefined && isOpen !== fold.open) fold.open = isOpen;
    }
    content.scrollTop = scroll;
    if (focus !== null && document.activeElement === document.body) {
      content.querySelectorAll(FOCUSABLE)[focus]?.focus({ preventScroll: true });
    }
  }

  // The click comes before the fold moves.
  function rememberFold(click) {
    const fold = click.target.closest("summary")?.parentElement;
    if (fold && ns.panelShown()?.contains(fold)) folds.set(foldName(fold), !fold.open);
  }

  // Over plain http from another machine there is no clipboard to write to; the old way works everywhere.
  async function write(text) {
    if (navigator.clipboard) return navigator.clipboard.writeText(text).then(() => true, () => false);
    const focused = document.activeElement;
    const area = ns.make("textarea", "ns-hidden");
    area.value = text;
    document.body.append(area);
    area.select();
    const isDone = document.execCommand("copy");
    area.remove();
    focused.focus({ preventScroll: true });
    return isDone;
  }

  // Copies text, and says on the button for a moment whether it is done.
  ns.copy = async function (text, button) {
    const label = button.querySelector(".mantine-Button-label") || button;
    if (label.dataset.before !== undefined) return;
    label.dataset.before = label.textContent;
    ns.setText(label, (await write(text)) ? "Copied" : "Not allowed");
    window.setTimeout(() => {
      ns.setText(label, label.dataset.before);
      delete label.dataset.before;
    }, 1500);
  };

  ns.startPanel = function () {
    const content = ns.byId("event-content");
    new MutationObserver(arrive).observe(content, { childList: true });
    content.addEventListener("scroll", () => { scroll = content.scrollTop; }, { passive: true });
    content.addEventListener("click", rememberFold);
    content.addEventListener("focusin", (moved) => {
      focus = [...content.querySelectorAll(FOCUSABLE)].indexOf(/** @type {Element} */ (moved.target));
    });
    // A click on what takes no focus leaves it nowhere; one on what has it already is told by no event. Where it
    // is comes after the mouse's event.
    const look = () => { if (!content.contains(document.activeElement)) focus = null; };
    document.addEventListener("mousedown", () => window.setTimeout(look), true);
    content.addEventListener("focusout", (moved) => { if (moved.relatedTarget) focus = null; });
    document.addEventListener("click", (click) => {
      const button = click.target.closest("button");
      if (!button) return;
      if (button.dataset.text) ns.copy(button.dataset.text, button);
      if (button.dataset.copy) ns.copy(ns.byId(button.dataset.copy).textContent, button);
    });
  };
})(window.nanscope);
