// The live connection: subscribes to what the view asks for, acknowledges what was drawn, comes back by itself.
(function (ns) {
  "use strict";

  const FIRST_WAIT_MS = 300;
  const LONGEST_WAIT_MS = 4000;
  /** @type {WebSocket | null} */
  let socket = null;
  let wait = FIRST_WAIT_MS;
  let subscription = 0;
  let asked = 0; // pixels of the newest subscription

  ns.link = { isOpen: false, everOpen: false, heardAt: 0, bytes: 0, messages: 0 };

  function send(message) {
    if (socket && socket.readyState === WebSocket.OPEN) socket.send(JSON.stringify(message));
  }

  function pixels() {
    const width = ns.plotWidth ? ns.plotWidth() : 800;
    return Math.max(64, Math.min(1000, Math.round(width)));
  }

  ns.subscribe = function () {
    const view = ns.view;
    subscription += 1;
    asked = pixels();
    send({
      m: "subscribe",
      id: subscription,
      run: view.run,
      event: view.run === null ? view.event : null, // of which run it is, the server knows
      rank: view.rank,
      first: view.first,
      end: view.end,
      window: view.window,
      points: asked,
      columns: asked,
      unfolded: ns.askedLayers(),
      statistic: view.heatmap,
      logged: view.logged,
      ranks: view.tab === "ranks" ? view.ranks : "",
      paused: view.paused,
    });
  };

  /** @param {MessageEvent<ArrayBuffer>} event */
  function receive(event) {
    ns.link.heardAt = performance.now();
    ns.link.bytes += event.data.byteLength;
    ns.link.messages += 1;
    document.body.dataset.heard = ""; // the skeleton of ns_tracks.css has done its service
    const header = ns.decode(event.data);
    // An answer to an older wish is kept for the next message to build on, and not drawn.
    if (header.subscription === subscription) {
      if (header.charts) ns.showArrays();
      ns.emit("message", header);
    } else if (header.runs) ns.emit("runs", header.runs);
    // The next one comes after this one is on screen; a hidden tab draws no frames, and is told of events at most.
    if (document.hidden) send({ m: "ack" });
    else requestAnimationFrame(() => send({ m: "ack" }));
  }

  const tellVisible = () => send({ m: "visible", visible: !document.hidden, events: ns.notifies() });

  function connect() {
    const scheme = window.location.protocol === "https:" ? "wss://" : "ws://";
    socket = new WebSocket(scheme + window.location.host + "/live");
    socket.binaryType = "arraybuffer";
    socket.onopen = () => {
      wait = FIRST_WAIT_MS;
      ns.arrays.clear();
      ns.link.isOpen = ns.link.everOpen = true;
      ns.link.heardAt = performance.now();
      tellVisible();
      ns.subscribe();
      ns.emit("link", ns.link);
    };
    socket.onmessage = receive;
    socket.onclose = () => {
      ns.link.isOpen = false;
      ns.emit("link", ns.link);
      window.setTimeout(connect, wait);
      wait = Math.min(LONGEST_WAIT_MS, wait * 2);
    };
  }

  ns.startSocket = function () {
    connect();
    ns.on("view", ns.subscribe);
    ns.on("notify", tellVisible);
    ns.on("resized", (id) => id === "loss" && Math.abs(pixels() - asked) > asked / 5 && ns.subscribe());
    document.addEventListener("visibilitychange", () => {
      tellVisible();
      // A frame that was never drawn was never acknowledged.
      if (!document.hidden) send({ m: "ack" });
    });
  };
})(window.nanscope);
