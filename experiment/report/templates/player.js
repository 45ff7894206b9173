// The player: two pools, moved by one position, with block tables, counters and what happens.
(function () {
  "use strict";
  const root = document.getElementById("player-stage");
  if (!root) return;
  const data = JSON.parse(document.getElementById("player-data").textContent);
  const films = new Map(data.films.map((film) => [film.arm, film]));
  const SPEEDS = { step: [1, 4, 12, 30, 60], time: [0.25, 0.5, 1, 4, 16, 64] };
  const FRACTIONS = { 0.25: "¼", 0.5: "½" };
  const [HISTORY, CHIPS, HOLD_MS] = [5, 32, 2000];
  const find = (selector, within) => (within || root).querySelector(selector);
  // `clock`: seconds, where positions are times. `hold`: until when the peak is held, of a loop.
  const player = { at: 0, end: 0, clock: 0, stops: [], playing: false, loop: true, hold: 0, pinned: null, hovered: null, token: null, owed: 0, last: 0, turn: 0 };
  const teller = new pagedkv.Teller(data.texts);
  const now = () => performance.now();

  // ---- both sides ----

  const stage = { teller, state: player, byTime, follow, refresh: () => refresh(now()) };
  const sides = [...root.querySelectorAll(".side")].map((node) => new pagedkv.Side(node, stage));
  // The right side, and the only one of a run with one arm.
  const main = sides[sides.length - 1];
  const slider = find("#player-position");
  const playButton = find("#player-play");
  const speed = find("#player-speed");
  const tokenField = find("#player-token");
  const chips = new Map();

  function open() {
    for (const side of sides) side.open(films.get(side.select.value));
    measure();
    layout();
    const used = new Set(sides.flatMap((side) => side.facts.told.flat().map((event) => event.key)));
    const some = (name) => sides.some((side) => side.facts.curve.some((one) => one[name]));
    const seen = {
      held: some("unwritten"), written: some("live"), padding: some("padding"), ended: some("finished"), cached: some("cached"),
      engine: some("engine"), shared: some("shared"), new: used.has("allocated"), copied: used.has("copied"),
      freed: used.has("freed") || used.has("finished"), evicted: used.has("evicted") || used.has("preempted") || used.has("swapped"),
    };
    for (const sample of root.querySelectorAll("[data-sample]")) sample.hidden = !seen[sample.dataset.sample];
  }

  function byTime() {
    return find("#player-by-time").checked;
  }

  // How many of so many are as wanted, where all of those come first.
  function before(count, wanted) {
    let low = 0;
    let high = count;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (wanted(middle)) low = middle + 1;
      else high = middle;
    }
    return low;
  }

  // The last frame whose `name` (its step or its second) is not beyond the limit. After a side's run
  // its last picture stays.
  function lastFrame(side, name, limit) {
    return Math.min(before(side.film.frames.length, (i) => side.film.frames[i][name] <= limit) - 1, side.facts.useful);
  }

  // All films are thinned alike, so a position is the same step of both logs.
  const stepAt = (position) => Math.min(position * main.film.every, player.most + 1) - 1;
  const lastUseful = (side) => side.film.frames[side.facts.useful];

  function measure() {
    player.most = Math.max(...sides.map((side) => lastUseful(side).n));
    player.seconds = Math.max(...sides.map((side) => side.facts.seconds));
    const times = sides.flatMap((side) => [...side.film.frames.slice(0, side.facts.useful + 1).map((frame) => frame.t), side.facts.seconds]);
    player.stops = [...new Set(times)].sort((a, b) => a - b);
    player.end = byTime() ? player.stops.length : Math.floor(player.most / main.film.every) + 1;
    slider.min = byTime() ? 0 : 1;
    slider.max = byTime() ? player.seconds : player.end;
    slider.step = byTime() ? "any" : 1;
    const place = byTime() ? (frame) => frame.t : (frame) => Math.floor(frame.n / main.film.every);
    const end = byTime() ? player.seconds : player.end;
    const top = Math.max(...sides.flatMap((side) => side.facts.curve.map((one) => one.reserved * side.film.slotBytes)), 1);
    for (const side of sides) side.drawCurve(place, end, top, byTime() ? side.facts.seconds : place(lastUseful(side)) + 1);
    ticks(place, byTime() ? end : Math.max(end - 1, 1));
  }

  // Under the scrubber: what is allocated; what is freed or shared; what is lost or waits.
  function ticks(place, end) {
    const paths = ["", "", ""];
    for (const side of sides) {
      side.facts.told.forEach((events, i) => {
        const keys = events.map((event) => event.key);
        if (!keys.length || side.film.elastic) return;
        const lost = keys.some((key) => ["preempted", "swapped", "evicted", "waits"].includes(key));
        const kind = lost ? 2 : keys.every((key) => key === "allocated") ? 0 : 1;
        paths[kind] += `M${Math.min((1000 * place(side.film.frames[i])) / end, 1000).toFixed(1)} 0v${[4, 6, 8][kind]}`;
      });
    }
    [...find(".ticks").children].forEach((node, i) => node.setAttribute("d", paths[i]));
  }

  function frameOf(side, position) {
    return byTime() ? lastFrame(side, "t", player.clock) : lastFrame(side, "n", stepAt(position));
  }

  // To a position: a step of both, or a moment at which something changes.
  function go(position, when) {
    position = Math.max(1, Math.min(player.end, position));
    if (byTime()) player.clock = player.stops[position - 1];
    show(position, when);
  }

  function show(position, when) {
    const onwards = position === player.at + 1;
    player.at = position;
    for (const side of sides) side.show(frameOf(side, position), when, onwards);
    pagedkv.write(find("#player-block"), ""); // what was said of a block was said of another step
    refresh(when);
  }

  const sought = () => (player.hovered !== null ? player.hovered : player.pinned);

  function refresh(when) {
    const request = sought();
    // Nobody reads lists sixty times a second: in a fast film they take turns.
    player.turn = (player.turn + 1) % 4;
    const fast = player.playing && (byTime() || SPEEDS.step[speed.selectedIndex] > 12);
    const due = (part) => !fast || part === player.turn;
    sides.forEach((side, i) => {
      side.draw(request, when);
      side.counters();
      if (due(3) || player.hovered !== null) side.about();
      if (due(i)) side.table(request);
    });
    if (due(2)) {
      showChips();
      showHistory();
    }
    moved();
    // Nobody wants to hear every step of a film.
    if (!player.playing) status();
  }

  // What follows the position, or the clock between two positions.
  function moved() {
    const value = byTime() ? player.clock : player.at;
    slider.value = value;
    pagedkv.write(find("#player-where"), where());
    slider.setAttribute("aria-valuetext", where());
    for (const side of sides) {
      side.cursor(byTime() ? value / player.seconds : (value - 0.5) / player.end);
      side.done();
    }
  }

  function where() {
    if (byTime()) return teller.say("at_time", { time: player.clock, last: player.seconds });
    const key = player.at === player.end ? "at_end" : player.at === 1 ? "at_start" : "at_step";
    return teller.say(key, { step: stepAt(player.at) + 1, last: player.most + 1 });
  }

  function status() {
    const counted = sides.map((side) => teller.say("status", { arm: armOf(side), ...side.pool.counters() }));
    pagedkv.write(find("#player-status"), [where(), ...counted].join(" "));
  }

  const armOf = (side) => teller.say("arm." + side.film.arm);

  // ---- what happens, in words ----

  // The latest events of both sides up to where they are, the last first.
  function latest() {
    const lines = [];
    for (const side of sides) {
      for (let i = side.pool.at, found = 0; i >= 0 && found < HISTORY; i--) {
        const frame = side.film.frames[i];
        for (const event of side.facts.told[i].slice().reverse()) {
          found += 1;
          lines.push({ side, frame, event });
        }
      }
    }
    const clock = byTime() ? "t" : "n";
    return lines.sort((one, other) => other.frame[clock] - one.frame[clock]).slice(0, HISTORY);
  }

  function eventText(side, event) {
    if (event.key === "waits") return teller.say("waits." + event.reason, event);
    const key = event.key === "allocated" && side.film.elastic ? "grown" : event.key;
    const text = teller.say("event." + key, { ...event, blocks: event.blocks.length ? side.list(event.blocks) : "—", copy: event.blocks[0] });
    return event.by === undefined ? text : text + " " + teller.say("cause", event);
  }

  function showHistory() {
    const list = find("#player-history");
    const lines = latest();
    while (list.childNodes.length > lines.length) list.lastChild.remove();
    lines.forEach(({ side, frame, event }, i) => {
      const item = list.childNodes[i] || list.appendChild(document.createElement("li"));
      teller.tell(item, "event_line", { step: frame.n + 1, arm: armOf(side), event: eventText(side, event) });
    });
  }

  // ---- playing ----

  function play(on) {
    if (on === player.playing) return;
    if (on && player.at >= player.end) begin();
    player.playing = on;
    player.owed = player.hold = 0;
    player.last = now();
    root.classList.toggle("playing", on);
    find(".when-playing", playButton).toggleAttribute("hidden", !on);  // SVG knows no .hidden
    find(".when-paused", playButton).toggleAttribute("hidden", on);
    playButton.setAttribute("aria-pressed", on);
    if (!on && !player.at) go(1, player.last);
    refresh(player.last);
    if (on) requestAnimationFrame(tick);
  }

  function begin() {
    player.clock = 0;
    if (byTime()) show(0, now());
    else go(1, now());
  }

  function tick(when) {
    if (!player.playing) return;
    const passed = Math.min(Math.max(when - player.last, 0), 250) / 1000;
    player.last = when;
    for (const side of sides) side.canvas.expire(when, false);
    if (player.hold) {
      if (when >= player.hold) {
        player.hold = 0;
        begin();
      }
    } else if (!(byTime() ? run : steps)(passed, when)) {
      for (const side of sides) side.canvas.draw(when);
    }
    if (!player.hold && player.loop && atPeak()) player.hold = when + HOLD_MS;
    if (player.at >= player.end && !player.hold && (!byTime() || player.clock >= player.seconds)) return play(false);
    requestAnimationFrame(tick);
  }

  // A slow machine plays slower: steps are never left out.
  function steps(passed, when) {
    player.owed += passed * SPEEDS.step[speed.selectedIndex];
    if (player.owed < 1) return false;
    player.owed = Math.min(player.owed - 1, 1);
    go(player.at + 1, when);
    return true;
  }

  // A second of the run takes a constant time to watch.
  function run(passed, when) {
    player.clock = Math.min(player.clock + passed * SPEEDS.time[speed.selectedIndex], player.seconds);
    const at = before(player.stops.length, (i) => player.stops[i] <= player.clock);
    if (at > player.at) show(at, when);
    else moved();
    return at > player.at;
  }

  function atPeak() {
    return player.at === after(main, main.facts.peak);
  }

  // What a person does ends the loop for good.
  function interrupt() {
    player.loop = false;
    play(false);
  }

  function seek(position) {
    interrupt();
    go(position, now());
    note();
  }

  const step = (by) => seek(player.at + by);

  // The position after frame `index` of a side.
  function after(side, index) {
    const frame = side.film.frames[Math.max(index, 0)];
    return byTime() ? player.stops.indexOf(frame.t) + 1 : Math.floor(frame.n / side.film.every) + 1;
  }

  // Speeds at which a run of seconds takes about ten to watch.
  function offerSpeeds() {
    const time = byTime();
    const values = time ? SPEEDS.time : SPEEDS.step;
    const far = (value) => Math.abs(Math.log(player.seconds / value / 11));
    const best = time ? values.reduce((one, other) => (far(other) < far(one) ? other : one)) : values.find((value) => value >= 12 && player.end <= 12 * value) || 60;
    speed.replaceChildren(...values.map((value) => new Option(time ? `${FRACTIONS[value] || value} ×` : `${value}/s`, value, value === best, value === best)));
  }

  // ---- choosing: a request, a block, a token ----

  function choose(request, side, block) {
    interrupt();
    player.pinned = request;
    player.hovered = null;
    for (const one of sides) one.picked = one === side ? block : null;
    refresh(now());
    note();
  }

  function hover(request, side = null, block = null) {
    if (player.hovered === request && sides.every((one) => one.lit === (one === side ? block : null))) return;
    player.hovered = request;
    for (const one of sides) one.lit = one === side ? block : null;
    refresh(now());
  }

  function follow(token) {
    interrupt();
    player.token = token;
    tokenField.value = token === null ? "" : token;
    if (player.pinned === null) player.pinned = sought() === null ? main.pool.holders.keys().next().value ?? null : sought();
    refresh(now());
    note();
  }

  // A button for each request that holds memory on either side, by number.
  function showChips() {
    const held = [...new Set(sides.flatMap((side) => [...side.pool.holders.keys()]))].sort((a, b) => a - b);
    const shown = held.slice(0, CHIPS);
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
      chip.setAttribute("aria-pressed", String(request === player.pinned));
    });
    pagedkv.write(find(".chips-more"), held.length > CHIPS ? teller.say("more_requests", { n: held.length - CHIPS }) : "");
  }

  function newChip(request) {
    const chip = document.createElement("button");
    chip.type = "button";
    chip.className = "chip";
    chip.style.setProperty("--request", pagedkv.COLOURS[request % pagedkv.COLOURS.length]);
    chip.textContent = request;
    chip.setAttribute("aria-label", teller.say("request", { request }));
    chip.addEventListener("click", () => choose(player.pinned === request ? null : request));
    chip.addEventListener("pointerenter", (event) => event.pointerType === "mouse" && hover(request));
    chip.addEventListener("focus", () => hover(request));
    return chip;
  }

  function moveCursor(side, by) {
    if (side.film.elastic) return;
    const old = side.picked;
    side.picked = Math.max(0, Math.min(side.film.blocks - 1, old === null ? 0 : old + by));
    const owners = side.pool.owners[side.picked];
    player.hovered = owners.length ? owners[0] : null;
    refresh(now());
    pagedkv.write(find("#player-block"), side.nodes.about.textContent);
  }

  for (const side of sides) {
    const node = side.canvasNode;
    const at = (event) => [event.offsetX, event.offsetY];
    node.addEventListener("pointermove", (event) => {
      if (event.pointerType === "mouse") hover(side.canvas.requestAt(...at(event)), side, side.canvas.blockAt(...at(event)));
    });
    node.addEventListener("pointerleave", () => hover(null));
    node.addEventListener("click", (event) => choose(side.canvas.requestAt(...at(event)), side, side.canvas.blockAt(...at(event))));
    node.addEventListener("blur", () => hover(null));
    node.addEventListener("keydown", (event) => {
      const columns = Math.max(1, Math.round(side.canvas.rowSlots / side.film.size));
      const by = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -columns, ArrowDown: columns }[event.key];
      if (by) moveCursor(side, by);
      else if (event.key === "Enter") choose(player.hovered, side, side.picked);
      else if (event.key === "Escape") choose(null);
      else return;
      event.preventDefault();
    });
    find(".strip", side.node).addEventListener("click", (event) => {
      const box = find(".strip", side.node).getBoundingClientRect();
      const share = (event.clientX - box.left) / box.width;
      if (byTime()) seekTime(share * player.seconds);
      else seek(Math.floor(share * player.end) + 1);
    });
    side.select.addEventListener("change", () => {
      open();
      seek(player.at);
    });
  }

  find(".chips").addEventListener("pointerleave", () => hover(null));
  find(".chips").addEventListener("focusout", () => hover(null));
  tokenField.addEventListener("input", () => follow(/^\d+$/.test(tokenField.value) ? Number(tokenField.value) : null));
  playButton.addEventListener("click", () => {
    player.loop = false;
    play(!player.playing);
    if (!player.playing) note();
  });
  for (const [name, by] of [["first", -Infinity], ["back", -1], ["on", 1], ["last", Infinity]]) {
    find("#player-" + name).addEventListener("click", () => step(by));
  }
  speed.addEventListener("change", () => { player.loop = false; });
  slider.addEventListener("input", () => (byTime() ? seekTime(Number(slider.value)) : seek(Number(slider.value))));

  function seekTime(seconds) {
    seek(before(player.stops.length, (i) => player.stops[i] <= seconds));
  }

  // The other axis, at the same frame of the right side; it plays on if it played.
  function turnAxis() {
    const frame = main.pool.at;
    player.loop = false;
    player.hold = 0;
    measure();
    offerSpeeds();
    go(after(main, frame), now());
    note();
  }

  for (const input of root.querySelectorAll("[name=player-axis]")) input.addEventListener("change", turnAxis);
  root.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.target === tokenField) return;
    if (event.key === " " && !["BUTTON", "SELECT", "INPUT"].includes(event.target.tagName)) playButton.click();
    else if (event.key === ",") step(-1);
    else if (event.key === ".") step(1);
    else return;
    event.preventDefault();
  });
  find("#player-more").addEventListener("click", (event) => {
    const open = root.classList.toggle("unfolded");
    event.currentTarget.setAttribute("aria-expanded", open);
  });

  // ---- the state in the address ----

  function note() {
    if (player.playing) return;
    const parts = [byTime() ? `time=${player.clock}` : `step=${stepAt(player.at) + 1}`];
    if (player.pinned !== null) parts.push(`request=${player.pinned}`);
    if (player.token !== null) parts.push(`token=${player.token}`);
    for (const side of sides) {
      if (side.select.value !== side.opens) parts.push(`${side === main ? "right" : "left"}=${side.select.value}`);
    }
    try {
      history.replaceState(null, "", "#" + parts.join("&"));
    } catch (error) {
      // Not every frame of another page may change its address.
    }
  }

  // Whether the address has a state of the player, which is shown then.
  function read() {
    const asked = new URLSearchParams(location.hash.slice(1));
    const number = (name) => (/^\d+(\.\d+)?$/.test(asked.get(name) || "") ? Number(asked.get(name)) : null);
    const place = number(asked.has("time") ? "time" : "step");
    if (place === null) return false;
    interrupt();
    find(asked.has("time") ? "#player-by-time" : "#player-by-step").checked = true;
    for (const side of sides) {
      const arm = asked.get(side === main ? "right" : "left");
      side.select.value = films.has(arm) ? arm : side.opens;
    }
    open();
    offerSpeeds();
    player.pinned = number("request");
    player.token = number("token");
    tokenField.value = player.token === null ? "" : player.token;
    const position = byTime() ? before(player.stops.length, (i) => player.stops[i] <= place) : Math.ceil(place / main.film.every);
    go(position, now());
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

  async function copyPicture() {
    const made = picture();
    let key = "picture_copied";
    try {
      await navigator.clipboard.write([new ClipboardItem({ "image/png": made })]);
    } catch (error) {
      key = "picture_saved";
      const link = document.createElement("a");
      link.href = URL.createObjectURL(await made);
      link.download = "pagedkv.png";
      link.click();
      setTimeout(() => URL.revokeObjectURL(link.href), 1000);
    }
    teller.tell(find("#player-done"), key);
  }

  find("#player-picture").addEventListener("click", copyPicture);

  // ---- size, language, theme; the beginning ----

  function layout() {
    const width = Math.max(160, Math.floor(main.canvasNode.parentNode.clientWidth));
    const scale = pagedkv.scale(sides.map((side) => side.film), width, window.innerWidth < 704 ? 150 : 240);
    for (const side of sides) {
      side.canvas.layout(scale, width);
      side.thinned();
    }
  }

  function redraw() {
    layout();
    refresh(now());
  }

  new ResizeObserver(() => {
    if (main.canvas.width !== Math.max(160, Math.floor(main.canvasNode.parentNode.clientWidth))) redraw();
  }).observe(root);

  function speak() {
    for (const [request, chip] of chips) chip.setAttribute("aria-label", teller.say("request", { request }));
    for (const option of root.querySelectorAll(".side option")) {
      option.lang = document.documentElement.lang;
      pagedkv.write(option, teller.say("arm." + option.value));
    }
    pagedkv.write(find("#player-done"), "");
    tokenField.placeholder = teller.say("newest");
    measure();
  }

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
  if (!read()) go(after(main, main.facts.peak), now());
  const watch = new IntersectionObserver(([seen]) => {
    if (!player.loop || pagedkv.STILL.matches) return watch.disconnect();
    if (seen.isIntersecting && atPeak()) begin();
    play(seen.isIntersecting);
  }, { threshold: 0.35 });
  watch.observe(find(".sides"));

  // For the tests and the benchmark.
  pagedkv.player = {
    go: (position) => {
      if (player.loop) play(false);
      player.loop = false;
      go(position, now());
    },
    play, speeds: SPEEDS.step, state: player,
    events: () => sides.map((side) => side.facts.told),
    counters: () => sides.map((side) => ({ arm: side.film.arm, step: (side.pool.frame() || { n: null }).n, ...side.pool.counters() })),
  };
})();
