// The player: two pools, moved by one position, with block tables, counters and what happens.
(function () {
  "use strict";
  const root = document.getElementById("player-stage");
  if (!root) return;
  const data = JSON.parse(document.getElementById("player-data").textContent);
  const films = new Map(data.films.map((film) => [film.arm, film]));
  const SPEEDS = { step: [1, 4, 12, 30, 60], time: [0.25, 0.5, 1, 4, 16, 64] };
  const [HISTORY, HOLD_MS] = [5, 2000];
  const find = (selector) => root.querySelector(selector);
  const now = () => performance.now();
  const teller = new pagedkv.Teller(data.texts);

  // `stops`: the steps, or by time the seconds, at which something changes; `at`: the last of them that
  // is shown, −1 before the first; `clock`: where between two of them the film is. `hold`: until when
  // the peak is held, of a loop. `pinned` and `hovered`: { request, side, block }.
  const player = { stops: [], at: -1, clock: 0, playing: false, loop: true, hold: 0, last: 0, pinned: null, hovered: null, walking: false, token: null };
  const stage = { teller, state: player, byTime, hover, follow };
  const sides = [...root.querySelectorAll(".side")].map((node) => new pagedkv.Side(node, stage));
  // The right side, and the only one of a run with one arm.
  const main = sides.at(-1);
  const slider = find("#player-position");
  const playButton = find("#player-play");
  const speed = find("#player-speed");
  const tokenField = find("#player-token");
  const chips = new Map();
  let log = []; // of events: { side, index and frame, event }, the first first

  function byTime() {
    return find("#player-by-time").checked;
  }

  // The field of a frame that positions are: its step or its second.
  const axis = () => (byTime() ? "t" : "n");
  const position = () => player.stops[player.at] ?? 0;
  const stopAt = (place) => player.stops.findLastIndex((stop) => stop <= place);
  const atEnd = () => player.at === player.stops.length - 1;
  const atPeak = () => position() === main.film.frames[main.facts.peak][axis()];

  function open() {
    for (const side of sides) side.open(films.get(side.select.value));
    measure();
    layout();
    const states = { held: "unwritten", written: "live", ended: "finished" };
    const marks = new Set(sides.flatMap((side) => side.facts.told.flat().map((event) => pagedkv.SAMPLE_OF[event.key])));
    for (const item of root.querySelectorAll("[data-sample]")) {
      const name = item.dataset.sample;
      item.hidden = !marks.has(name) && !sides.some((side) => side.has(states[name] || name));
    }
  }

  // The positions of both sides and what happens at them.
  function measure() {
    const name = axis();
    const places = sides.flatMap((side) => side.film.frames.map((frame) => frame[name]));
    player.stops = [...new Set(places)].sort((a, b) => a - b);
    slider.max = byTime() ? player.stops.at(-1) : player.stops.length - 1;
    slider.step = byTime() ? "any" : 1;
    log = sides.flatMap((side) => side.facts.told.flatMap((events, index) =>
      events.map((event) => ({ side, index, event, frame: side.film.frames[index] }))));
    log.sort((one, other) => one.frame[name] - other.frame[name]);
    // Under the scrubber: what is allocated; what is freed or shared; what is lost or waits.
    const paths = ["", "", ""];
    for (const { side, event: { key }, frame } of log) {
      const kind = ["preempted", "swapped", "evicted", "waits"].includes(key) ? 2 : key === "allocated" ? 0 : 1;
      const tick = `M${Math.min((1000 * frame[name]) / (player.stops.at(-1) || 1), 1000).toFixed(1)} 0v${[4, 6, 8][kind]}`;
      if (!side.film.elastic && !paths[kind].endsWith(tick)) paths[kind] += tick;
    }
    [...find(".ticks").children].forEach((node, i) => node.setAttribute("d", paths[i]));
  }

  // To a stop, −1: before the first.
  function show(at, when = now()) {
    const onwards = at === player.at + 1;
    player.at = at;
    for (const side of sides) side.show(axis(), player.stops[at] ?? -1, when, onwards);
    pagedkv.write(find("#player-block"), ""); // what was said of a block was said of another step
    refresh();
  }

  function go(at, when) {
    at = Math.max(0, Math.min(player.stops.length - 1, at));
    player.clock = player.stops[at];
    show(at, when);
  }

  const sought = () => player.pinned?.request ?? player.hovered?.request ?? null;

  function refresh() {
    for (const side of sides) {
      side.draw(sought());
      side.counters();
      side.about();
      side.table(sought());
    }
    showChips();
    showHistory();
    moved();
    // Nobody wants to hear every step of a film.
    if (player.playing) return;
    const counted = sides.map((side) => teller.say("status", { arm: armOf(side), ...side.pool.counters() }));
    pagedkv.write(find("#player-status"), [where(), ...counted].join(" "));
  }

  // What follows the position, or the clock between two positions.
  function moved() {
    slider.value = byTime() ? player.clock : player.at;
    pagedkv.write(find("#player-where"), where());
    slider.setAttribute("aria-valuetext", where());
    for (const side of sides) side.done();
  }

  function where() {
    if (byTime()) return teller.say("at_time", { time: player.clock, last: player.stops.at(-1) });
    const key = atEnd() ? "at_end" : player.at === 0 ? "at_start" : "at_step";
    return teller.say(key, { step: position(), last: player.stops.at(-1) });
  }

  const armOf = (side) => teller.say("arm." + side.film.arm);

  // ---- what happens, in words ----

  function eventText(side, event) {
    if (event.key === "waits") return teller.say("waits." + event.reason, event);
    const key = event.key === "allocated" && side.film.elastic ? "grown" : event.key;
    const text = teller.say("event." + key, { ...event, blocks: event.blocks.length ? side.list(event.blocks) : "—", copy: event.blocks[0] });
    return event.by === undefined ? text : text + " " + teller.say("cause", event);
  }

  function showHistory() {
    const list = find("#player-history");
    const lines = log.filter(({ side, index }) => index <= side.pool.at).slice(-HISTORY).reverse();
    while (list.childNodes.length > lines.length) list.lastChild.remove();
    lines.forEach(({ side, frame, event }, i) => {
      const item = list.childNodes[i] || list.appendChild(document.createElement("li"));
      teller.tell(item, "event_line", { step: frame.n, arm: armOf(side), event: eventText(side, event) });
    });
  }

  // ---- playing ----

  function play(on) {
    if (on === player.playing) return;
    if (on && atEnd()) begin();
    player.playing = on;
    player.hold = 0;
    player.last = now();
    root.classList.toggle("playing", on);
    playButton.setAttribute("aria-pressed", on);
    if (!on && player.at < 0) go(0);
    refresh();
    if (on) requestAnimationFrame(tick);
  }

  function begin() {
    player.clock = 0;
    show(byTime() ? -1 : 0);
  }

  function tick(when) {
    if (!player.playing) return;
    const passed = Math.min(Math.max(when - player.last, 0), 250) / 1000;
    player.last = when;
    for (const side of sides) side.canvas.expire(when);
    if (!player.hold) advance(passed, when);
    else if (when >= player.hold) {
      player.hold = 0;
      begin();
    }
    for (const side of sides) side.canvas.draw();
    if (!player.hold && player.loop && atPeak()) player.hold = when + HOLD_MS;
    if (atEnd() && !player.hold) return play(false);
    requestAnimationFrame(tick);
  }

  // A second of the run takes a constant time to watch. Of steps none is left out: a slow machine
  // plays slower.
  function advance(passed, when) {
    const { at, stops } = player;
    const every = byTime() ? 1 : main.film.every;
    const limit = byTime() ? player.stops.at(-1) : (stops[at + 1] ?? 0) + every;
    player.clock = Math.min(player.clock + passed * speed.value * every, limit);
    const next = byTime() ? stopAt(player.clock) : Math.min(stopAt(player.clock), at + 1);
    if (next > at) show(next, when);
    else moved();
  }

  // What a person does ends the loop for good.
  function interrupt() {
    player.loop = false;
    play(false);
  }

  function seek(at) {
    interrupt();
    go(at);
    note();
  }

  const seekTo = (place) => seek(stopAt(place));

  // Speeds, the chosen one such that a run takes about six seconds to watch.
  function offerSpeeds() {
    const values = byTime() ? SPEEDS.time : SPEEDS.step;
    const length = byTime() ? player.stops.at(-1) : player.stops.length;
    const far = (value) => Math.abs(Math.log(length / value / 6));
    const best = values.reduce((one, other) => (far(other) <= far(one) ? other : one));
    speed.replaceChildren(...values.map((value) => new Option(byTime() ? `${value} ×` : `${value}/s`, value, value === best, value === best)));
  }

  // ---- choosing: a request, a block, a token ----

  function choose(target) {
    interrupt();
    player.pinned = target;
    player.hovered = null;
    player.walking = false;
    refresh();
    note();
  }

  // A list that changes under a resting pointer gives it another target, or none: a block that was
  // reached by keys stays.
  function hover(target, event = null, walking = false) {
    const moved = event && (event.movementX || event.movementY);
    if (player.walking && !walking && !(target && moved)) return;
    player.walking = walking;
    const same = (name) => player.hovered?.[name] === target?.[name];
    if (["request", "side", "block"].every(same)) return;
    player.hovered = target;
    refresh();
  }

  function follow(token, request = sought() ?? main.request) {
    interrupt();
    player.token = token;
    tokenField.value = token ?? "";
    if (request !== null && request !== player.pinned?.request) player.pinned = { request, side: null, block: null };
    refresh();
    note();
  }

  // A button for each request that holds memory on either side, by number.
  function showChips() {
    const shown = [...new Set(sides.flatMap((side) => [...side.pool.holders.keys()]))].sort((a, b) => a - b);
    const list = find(".chips");
    for (const [request, chip] of chips) {
      if (shown.includes(request)) continue;
      chips.delete(request); // first: a chip that loses the focus draws everything again
      chip.remove();
    }
    shown.forEach((request, i) => {
      if (!chips.has(request)) chips.set(request, newChip(request));
      const chip = chips.get(request);
      if (list.children[i] !== chip) list.insertBefore(chip, list.children[i] || null);
      chip.setAttribute("aria-pressed", String(request === player.pinned?.request));
    });
  }

  function newChip(request) {
    const target = { request, side: null, block: null };
    const chip = Object.assign(document.createElement("button"), {
      type: "button", className: "chip", textContent: request, ariaLabel: teller.say("request", { request }),
      onclick: () => choose(player.pinned?.request === request ? null : target),
      onpointerenter: (event) => event.pointerType === "mouse" && hover(target, event),
      onfocus: () => hover(target),
    });
    chip.style.setProperty("--request", pagedkv.colour(request));
    return chip;
  }

  // From block to block by keys.
  function walk(side, by) {
    if (side.film.elastic) return;
    const old = side.pointed;
    const block = Math.max(0, Math.min(side.film.blocks - 1, old === null ? 0 : old + by));
    hover({ request: side.pool.owners[block][0] ?? null, side, block }, null, true);
    pagedkv.write(find("#player-block"), side.nodes.about.textContent);
  }

  for (const side of sides) {
    const node = side.canvasNode;
    const under = (event) => ({ side, ...side.canvas.under(event.offsetX, event.offsetY) });
    node.addEventListener("pointermove", (event) => event.pointerType === "mouse" && hover(under(event), event));
    node.addEventListener("pointerleave", () => hover(null));
    node.addEventListener("click", (event) => choose(under(event)));
    node.addEventListener("blur", () => {
      player.walking = false;
      hover(null);
    });
    node.addEventListener("keydown", (event) => {
      const columns = Math.max(1, Math.round(side.canvas.rowSlots / side.film.size));
      const by = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -columns, ArrowDown: columns }[event.key];
      if (by) walk(side, by);
      else if (event.key === "Enter") choose(player.hovered || player.pinned);
      else if (event.key === "Escape") choose(null);
      else return;
      event.preventDefault();
    });
    side.select.addEventListener("change", () => {
      const place = position();
      open();
      seekTo(place);
    });
  }

  for (const left of ["pointerleave", "focusout"]) find(".chips").addEventListener(left, () => hover(null));
  tokenField.addEventListener("input", () => follow(/^\d+$/.test(tokenField.value) ? Number(tokenField.value) : null));
  playButton.addEventListener("click", () => {
    player.loop = false;
    play(!player.playing);
    note();
  });
  for (const [name, by] of [["first", -Infinity], ["back", -1], ["on", 1], ["last", Infinity]]) {
    find("#player-" + name).addEventListener("click", () => seek(player.at + by));
  }
  speed.addEventListener("change", () => { player.loop = false; });
  slider.addEventListener("input", () => (byTime() ? seekTo(slider.value) : seek(Number(slider.value))));

  // The other axis, at the same frame of the right side; it plays on if it played.
  for (const input of root.querySelectorAll("[name=player-axis]")) {
    input.addEventListener("change", () => {
      const frame = main.film.frames[Math.max(main.pool.at, 0)];
      player.loop = false;
      player.hold = 0;
      measure();
      offerSpeeds();
      go(stopAt(frame[axis()]));
      note();
    });
  }
  root.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.target === tokenField) return;
    if (event.key === " " && !["BUTTON", "SELECT", "INPUT"].includes(event.target.tagName)) playButton.click();
    else if (event.key === ",") seek(player.at - 1);
    else if (event.key === ".") seek(player.at + 1);
    else return;
    event.preventDefault();
  });
  find("#player-more").addEventListener("click", (event) => {
    event.currentTarget.setAttribute("aria-expanded", root.classList.toggle("unfolded"));
  });

  // ---- the state in the address ----

  function note() {
    if (player.playing) return;
    const state = new URLSearchParams({ [byTime() ? "time" : "step"]: position() });
    if (player.pinned && player.pinned.request !== null) state.set("request", player.pinned.request);
    if (player.token !== null) state.set("token", player.token);
    for (const side of sides) {
      if (side.select.value !== side.opens) state.set(side === main ? "right" : "left", side.select.value);
    }
    try {
      history.replaceState(null, "", "#" + state);
    } catch (error) {
      // Not every frame of another page may change its address.
    }
  }

  // Whether the address has a state of the player, which is shown then.
  function read() {
    const asked = new URLSearchParams(location.hash.slice(1));
    const number = (name) => (/^\d+(\.\d+)?$/.test(asked.get(name)) ? Number(asked.get(name)) : null);
    const time = asked.has("time");
    const place = number(time ? "time" : "step");
    if (place === null) return false;
    interrupt();
    find(time ? "#player-by-time" : "#player-by-step").checked = true;
    for (const side of sides) {
      const arm = asked.get(side === main ? "right" : "left");
      side.select.value = films.has(arm) ? arm : side.opens;
    }
    open();
    offerSpeeds();
    const request = number("request");
    player.pinned = request === null ? null : { request, side: null, block: null };
    player.token = number("token");
    tokenField.value = player.token ?? "";
    go(stopAt(place));
    root.scrollIntoView({ behavior: "instant", block: "start" });
    return true;
  }

  // ---- a picture of both pools ----

  function picture() {
    const { theme, ratio } = main.canvas;
    const pad = 24 * ratio;
    const sheet = document.createElement("canvas");
    const { width } = main.canvasNode;
    sheet.width = sides.length * (width + pad) + pad;
    sheet.height = Math.max(...sides.map((side) => side.canvasNode.height)) + 4.5 * pad;
    const c = sheet.getContext("2d");
    c.fillStyle = theme.paper;
    c.fillRect(0, 0, sheet.width, sheet.height);
    c.fillStyle = theme.ink;
    c.font = `${14 * ratio}px system-ui, sans-serif`;
    sides.forEach((side, i) => {
      const x = pad + i * (width + pad);
      const counted = [...side.node.querySelectorAll(".counter:not([hidden])")].map((one) => one.innerText.replace(/\s+/g, " "));
      c.fillText(armOf(side), x, pad * 1.2, width);
      c.drawImage(side.canvasNode, x, pad * 1.8);
      c.fillText(counted.join(" · "), x, sheet.height - pad * 1.7, width);
    });
    c.fillText(`${document.title} · ${where()}`, pad, sheet.height - pad * 0.7, sheet.width - 2 * pad);
    return new Promise((done) => sheet.toBlob(done, "image/png"));
  }

  find("#player-picture").addEventListener("click", async () => {
    const made = picture();
    let key = "picture_copied";
    try {
      await navigator.clipboard.write([new ClipboardItem({ "image/png": made })]);
    } catch (error) {
      key = "picture_saved";
      save("pagedkv.png", await made);
    }
    teller.tell(find("#player-done"), key);
  });

  // ---- size, language, theme; the beginning ----

  const width = () => Math.max(160, Math.floor(main.canvasNode.parentNode.clientWidth));

  function layout() {
    const scale = pagedkv.scale(sides.map((side) => side.film), width(), window.innerWidth < 704 ? 150 : 240);
    for (const side of sides) {
      side.canvas.layout(scale, width());
      side.notes();
    }
  }

  function redraw() {
    layout();
    refresh();
  }

  function speak() {
    for (const [request, chip] of chips) chip.setAttribute("aria-label", teller.say("request", { request }));
    for (const option of root.querySelectorAll(".side option")) {
      option.lang = document.documentElement.lang;
      pagedkv.write(option, teller.say("arm." + option.value));
    }
    pagedkv.write(find("#player-done"), "");
    tokenField.placeholder = teller.say("newest");
  }

  new ResizeObserver(() => main.canvas.width !== width() && redraw()).observe(root);
  new MutationObserver(() => {
    speak();
    redraw();
  }).observe(document.documentElement, { attributes: true, attributeFilter: ["lang", "data-theme"] });
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  window.addEventListener("hashchange", read);

  root.hidden = false;
  open();
  speak();
  offerSpeeds();
  // At the fullest moment of the right side until it is looked at; then from the beginning, again
  // and again, until a person does something.
  if (!read()) go(stopAt(main.film.frames[main.facts.peak][axis()]));
  const watch = new IntersectionObserver(([seen]) => {
    if (!player.loop || pagedkv.STILL.matches) return watch.disconnect();
    if (seen.isIntersecting && atPeak()) begin();
    play(seen.isIntersecting);
  }, { threshold: 0.35 });
  watch.observe(find(".sides"));

  // For the tests and the benchmark.
  pagedkv.player = {
    go: (place) => {
      if (player.loop) play(false);
      player.loop = false;
      go(stopAt(place));
    },
    play, speeds: SPEEDS.step, state: player,
    events: () => sides.map((side) => side.facts.told),
    counters: () => sides.map((side) => ({ arm: side.film.arm, step: side.film.frames[side.pool.at]?.n ?? null, ...side.pool.counters() })),
  };
})();
