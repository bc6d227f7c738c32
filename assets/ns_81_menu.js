// The menu in the header: opens by click, Enter or an arrow, goes by arrows, Home, End and first letters, closes by
// Escape, a choice, or when the focus leaves it.
(function (ns) {
  "use strict";

  const button = () => ns.byId("page-menu");
  const items = () => [...ns.byId("menu").querySelectorAll("[role^=menuitem]")].filter((item) => !item.closest(".ns-menu-group[hidden]"));

  function open(at) {
    ns.byId("menu").hidden = false;
    ns.setAttribute(button(), "aria-expanded", "true");
    items().at(at).focus();
  }

  function close(isFocusKept) {
    if (ns.byId("menu").hidden) return;
    ns.byId("menu").hidden = true;
    ns.setAttribute(button(), "aria-expanded", "false");
    if (!isFocusKept) button().focus();
  }

  // The item that a key leads to, or none.
  /** @param {KeyboardEvent} event */
  function next(event) {
    const all = items();
    const at = all.indexOf(document.activeElement);
    const places = { ArrowDown: (at + 1) % all.length, ArrowUp: at <= 0 ? all.length - 1 : at - 1, Home: 0, End: all.length - 1 };
    if (event.key in places) return all[places[event.key]];
    const isLetter = event.key.length === 1 && !event.ctrlKey && !event.metaKey && !event.altKey && event.key !== " ";
    const turned = isLetter ? [...all.slice(at + 1), ...all.slice(0, at + 1)] : [];
    return turned.find((item) => item.textContent.toLowerCase().startsWith(event.key.toLowerCase()));
  }

  /** @param {KeyboardEvent} event */
  function move(event) {
    if (event.key === "Escape" || event.key === "Tab") close();
    const item = next(event);
    if (item) item.focus();
    if (!item && event.key !== "Escape") return;
    event.preventDefault();
    event.stopPropagation();
  }

  // The session ends at the server too: its cookie, kept elsewhere, opens nothing any more.
  async function logOut() {
    const answer = await fetch("/logout", { method: "POST", headers: { "content-type": "application/json" } }).catch(() => null);
    if (answer?.ok) window.location.assign("/");
    else ns.tell("Not logged out: the dashboard does not answer.");
  }

  ns.startMenu = function () {
    ns.byId("log-out").addEventListener("click", logOut);
    const menu = ns.byId("menu");
    button().addEventListener("click", () => (menu.hidden ? open(0) : close()));
    button().addEventListener("keydown", (event) => {
      if (event.key !== "ArrowDown" && event.key !== "ArrowUp") return;
      event.preventDefault();
      open(event.key === "ArrowDown" ? 0 : -1);
    });
    menu.addEventListener("keydown", move);
    menu.addEventListener("click", (event) => event.target.closest("[role^=menuitem]") && close());
    document.addEventListener("pointerdown", ({ target }) => target.closest(".ns-menu-place") || close(true), true);
    menu.addEventListener("focusout", ({ relatedTarget }) => {
      if (relatedTarget && !relatedTarget.closest(".ns-menu-place")) close(true);
    });
  };
})(window.nanscope);
