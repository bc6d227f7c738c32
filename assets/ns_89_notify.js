// Notifications of the browser for critical events that come while the page is hidden: off until somebody switches them
// on in the menu. Grouped and rate-limited as the toast (ns_84_toast.js), which calls this.
(function (ns) {
  "use strict";

  const STORED = "nanscope-notify";
  const LONGEST = 200; // characters of an event's message
  let isOn = false;

  const isAllowed = () => "Notification" in window && window.Notification.permission === "granted";
  // Whether a hidden page has to hear of events.
  ns.notifies = () => isOn && isAllowed();

  function turn(on) {
    isOn = on;
    ns.setAttribute(ns.byId("notify"), "aria-checked", String(ns.notifies()));
    ns.emit("notify", ns.notifies());
  }

  function keep(on) {
    try {
      window.localStorage.setItem(STORED, on ? "on" : "off");
    } catch {
      // It holds for this page then.
    }
    turn(on);
  }

  // The browser is asked on a click alone.
  async function toggle() {
    if (ns.notifies()) return keep(false);
    if (!("Notification" in window)) return ns.tell("This browser has no notifications.");
    const said = await window.Notification.requestPermission();
    if (said !== "granted") ns.tell("The browser blocks notifications from this page; its site settings can change that.");
    return keep(said === "granted");
  }

  // `row` is the first of `count` new critical events.
  ns.notify = function (row, count) {
    if (!document.hidden || !ns.notifies()) return;
    const { run } = ns.view;
    const shown = ns.runs.find((each) => each.run === run);
    const more = count > 1 ? `, and ${ns.count(count - 1)} more` : "";
    const body = ns.visible(`${shown ? shown.name : run}${more}`.slice(0, LONGEST));
    try {
      const note = new window.Notification(ns.visible(row.message.slice(0, LONGEST)), { body, tag: `nanscope ${run}` });
      note.onclick = () => {
        window.focus();
        note.close();
        if (ns.view.run === run) ns.openEvent(row.id);
        else ns.chooseRun(run, true, { event: row.id });
      };
    } catch {
      turn(false); // some browsers of phones have the name alone
    }
  };

  ns.startNotify = function () {
    let stored = null;
    try {
      stored = window.localStorage.getItem(STORED);
    } catch {
      // Private windows may refuse storage.
    }
    turn(stored === "on");
    ns.byId("notify").addEventListener("click", toggle);
  };
})(window.nanscope);
