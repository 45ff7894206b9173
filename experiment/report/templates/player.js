// The player: two pools side by side, moved by one position, with counters, tables and marks.
(function () {
  "use strict";
  const root = document.getElementById("player-stage");
  if (!root) return;
  const data = JSON.parse(document.getElementById("player-data").textContent);
  const films = new Map(data.films.map((film) => [film.arm, film]));
  const SPEEDS = [1, 4, 12, 30, 60];
  const HISTORY = 5;
  const find = (selector, within) => (within || root).querySelector(selector);
  const player = { at: 0, end: 0, step: -1, peak: null, times: [], playing: false, pinned: null, hovered: null, owed: 0, last: 0, turn: 0 };
  const teller = new pagedkv.Teller(data.texts);

  // ---- both sides ----

  const stage = { teller, state: player, byTime, choose, hover };
  const sides = [...root.querySelectorAll(".side")].map((node) => new pagedkv.Side(node, stage));
  // The right side, and the only one of a run with one arm.
  const main = sides[sides.length - 1];
  const slider = find("#player-position");
  const playButton = find("#player-play");
  const speed = find("#player-speed");

  function open() {
    const chosen = sides.map((side) => films.get(side.select.value));
    const scale = pagedkv.scale(chosen);
    sides.forEach((side, i) => side.open(chosen[i], scale));
    player.times = [...new Set(chosen.flatMap((film) => film.frames.map((frame) => frame.t)))].sort((a, b) => a - b);
    measure();
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

  // The last frame whose `name` (its step or its second) is not beyond the limit.
  function lastFrame(film, name, limit) {
    return before(film.frames.length, (i) => film.frames[i][name] <= limit) - 1;
  }

  const lastStep = (film) => film.frames[film.frames.length - 1].n;

  // All films are thinned alike, so a position is the same step of both logs.
  function stepAt(position) {
    return Math.min(position * sides[0].film.every, player.most + 1) - 1;
  }

  function measure() {
    player.most = Math.max(...sides.map((side) => lastStep(side.film)));
    player.end = byTime() ? player.times.length : Math.floor(player.most / sides[0].film.every) + 1;
    slider.max = player.end;
  }

  function frameOf(side, position) {
    if (!position) return -1;
    if (byTime()) return lastFrame(side.film, "t", player.times[position - 1]);
    return lastFrame(side.film, "n", stepAt(position));
  }

  function go(position, now) {
    position = Math.max(0, Math.min(player.end, position));
    const onwards = position === player.at + 1;
    player.at = position;
    player.step = stepAt(position);
    for (const side of sides) side.show(frameOf(side, position), now, onwards);
    refresh(now);
  }

  function refresh(now) {
    const request = player.hovered !== null ? player.hovered : player.pinned;
    // Nobody reads lists sixty times a second: in a fast film they take turns.
    player.turn = (player.turn + 1) % 3;
    const fast = player.playing && SPEEDS[speed.selectedIndex] > 12;
    const due = (part) => !fast || part === player.turn;
    sides.forEach((side, i) => {
      if (side.canvas.chosen !== request) {
        side.canvas.chosen = request;
        side.pool.all = true;
      }
      side.canvas.draw(now);
      side.counters();
      side.cursor();
      if (!due(i)) return;
      side.requests(player.pinned);
      side.table(request);
    });
    slider.value = player.at;
    where(find("#player-where"));
    slider.setAttribute("aria-valuetext", find("#player-where").textContent);
    if (due(2)) showHistory();
    pagedkv.write(find("#player-block"), "");  // what was said of a block was said of another step
    // Nobody wants to hear every step of a film.
    if (!player.playing) status();
  }

  // The step of the log, or the second, that is shown.
  function where(node) {
    if (!player.at) return teller.tell(node, "at_start");
    if (byTime()) return teller.tell(node, "at_time", { time: player.times[player.at - 1] });
    const step = Math.max(...sides.map((side) => (side.pool.frame() || { n: -1 }).n));
    teller.tell(node, "at_step", { step, last: player.most });
  }

  function status() {
    const node = find("#player-status");
    while (node.children.length <= sides.length) node.append(document.createElement("span"), " ");
    const parts = node.children;
    where(parts[0]);
    sides.forEach((side, i) => {
      const values = { arm: teller.say("arm." + side.film.arm), ...side.pool.counters() };
      teller.tell(parts[i + 1], "status", values);
    });
  }

  // ---- what happens, in words ----

  // The latest events of both sides up to where they are, the last first.
  function latest() {
    const lines = [];
    const clock = byTime() ? "t" : "n";
    for (const side of sides) {
      const until = before(side.eventful.length, (i) => side.eventful[i] <= side.pool.at);
      for (let i = until - 1, found = 0; i >= 0 && found < HISTORY; i--) {
        const frame = side.film.frames[side.eventful[i]];
        for (const [key, values] of side.told[side.eventful[i]].slice().reverse()) {
          found += 1;
          lines.push({ side, frame, key, values, when: frame[clock] });
        }
      }
    }
    return lines.sort((one, other) => other.when - one.when).slice(0, HISTORY);
  }

  function showHistory() {
    const list = find("#player-history");
    const lines = latest();
    while (list.childNodes.length > lines.length) list.lastChild.remove();
    find("#player-quiet").hidden = lines.length > 0;
    lines.forEach(({ side, frame, key, values }, i) => {
      let item = list.childNodes[i];
      if (!item) {
        item = list.appendChild(document.createElement("li"));
        item.append(document.createElement("span"), " ", document.createElement("span"));
      }
      teller.tell(item.children[0], "event_line", { step: frame.n, arm: teller.say("arm." + side.film.arm) });
      teller.tell(item.children[1], "event." + key, values);
    });
  }

  // ---- playing ----

  function play(on) {
    if (on === player.playing) return;
    if (on && (player.at >= player.end || atPeak())) go(0, performance.now());
    player.playing = on;
    player.owed = 0;
    player.last = performance.now();
    root.classList.toggle("playing", on);
    find(".when-playing", playButton).toggleAttribute("hidden", !on);  // SVG knows no .hidden
    find(".when-paused", playButton).toggleAttribute("hidden", on);
    playButton.setAttribute("aria-pressed", on);
    refresh(player.last);
    if (on) requestAnimationFrame(tick);
  }

  function tick(now) {
    if (!player.playing) return;
    player.owed += ((now - player.last) / 1000) * SPEEDS[speed.selectedIndex];
    player.last = now;
    for (const side of sides) side.canvas.expire(now, false);
    // A slow machine plays slower: steps are never left out.
    if (player.owed >= 1) {
      player.owed = Math.min(player.owed - 1, 1);
      go(player.at + 1, now);
    } else {
      for (const side of sides) side.canvas.draw(now);
    }
    if (atPeak()) player.peak = null;
    else if (player.at < player.end) return requestAnimationFrame(tick);
    play(false);
  }

  // Until another position is chosen or the peak is played, playing leads from step 0 to the peak.
  function atPeak() {
    return player.peak !== null && player.at === after(main, player.peak);
  }

  function seek(position) {
    play(false);
    player.peak = null;
    go(position, performance.now());
  }

  const step = (by) => seek(player.at + by);

  // The position after frame `index` of a side; -1 is the beginning.
  function after(side, index) {
    const frame = side.film.frames[index];
    if (!frame) return 0;
    return byTime() ? player.times.indexOf(frame.t) + 1 : Math.floor(frame.n / side.film.every) + 1;
  }

  // ---- choosing a request ----

  function choose(request, pin) {
    if (pin) player.pinned = request;
    player.hovered = null;
    refresh(performance.now());
  }

  function hover(request) {
    if (player.hovered === request) return;
    player.hovered = request;
    refresh(performance.now());
  }

  function moveCursor(side, by) {
    const canvas = side.canvas;
    const film = side.film;
    if (film.elastic) return;
    const old = canvas.cursor;
    canvas.cursor = Math.max(0, Math.min(film.blocks - 1, old === null ? 0 : old + by));
    for (const block of [old, canvas.cursor]) if (block !== null) side.pool.dirty.add(block);
    const owners = side.pool.owners[canvas.cursor];
    hover(owners.length ? owners[0] : null);
    canvas.draw(performance.now());
    pagedkv.write(find("#player-block"), blockText(side, canvas.cursor));
  }

  function blockText(side, block) {
    const owners = side.pool.owners[block];
    if (!owners.length) return teller.say(side.pool.cached.has(block) ? "block_cached" : block < side.film.engine ? "block_engine" : "block_free", { block });
    const [, filled] = side.pool.part(block);
    const values = { block, owners: owners.join(", "), filled, size: side.film.size, logical: side.pool.place[block] };
    return teller.say("block", values);
  }

  for (const side of sides) {
    const node = side.canvasNode;
    const at = (event) => [event.offsetX, event.offsetY];
    node.addEventListener("pointermove", (event) => {
      hover(side.canvas.requestAt(...at(event)));
      const block = side.canvas.blockAt(...at(event));
      node.title = block === null ? "" : blockText(side, block);
    });
    node.addEventListener("pointerleave", () => hover(null));
    node.addEventListener("click", (event) => choose(side.canvas.requestAt(...at(event)), true));
    node.addEventListener("blur", () => {
      side.canvas.cursor = null;
      side.pool.all = true;
      hover(null);
      refresh(performance.now());
    });
    node.addEventListener("keydown", (event) => {
      const columns = side.film.slab ? 1 : side.canvas.rowSlots / side.film.size;
      const by = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -columns, ArrowDown: columns }[event.key];
      if (by) moveCursor(side, by);
      else if (event.key === "Enter") choose(player.hovered, true);
      else if (event.key === "Escape") choose(null, true);
      else return;
      event.preventDefault();
    });
    find(".chips", side.node).addEventListener("pointerleave", () => hover(null));
    find(".chips", side.node).addEventListener("focusout", () => hover(null));
    find(".strip", side.node).addEventListener("click", (event) => {
      const box = find(".strip", side.node).getBoundingClientRect();
      const frame = Math.min(Math.floor(((event.clientX - box.left) / box.width) * side.film.frames.length), side.film.frames.length - 1);
      seek(after(side, frame));
    });
    side.select.addEventListener("change", () => {
      open();
      seek(player.at);
    });
  }

  find("#player-first").addEventListener("click", () => step(-Infinity));
  find("#player-back").addEventListener("click", () => step(-1));
  playButton.addEventListener("click", () => play(!player.playing));
  find("#player-on").addEventListener("click", () => step(1));
  find("#player-last").addEventListener("click", () => step(Infinity));
  slider.addEventListener("input", () => seek(Number(slider.value)));
  for (const input of root.querySelectorAll("[name=player-axis]")) {
    input.addEventListener("change", () => {
      play(false);
      const frame = main.pool.at;
      measure();
      go(after(main, frame), performance.now());
    });
  }
  root.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === " " && !["BUTTON", "SELECT", "INPUT"].includes(event.target.tagName)) play(!player.playing);
    else if (event.key === ",") step(-1);
    else if (event.key === ".") step(1);
    else return;
    event.preventDefault();
  });

  function redraw() {
    for (const side of sides) {
      side.canvas.layout();
      side.thinned();
    }
    refresh(performance.now());
  }

  new ResizeObserver(() => {
    if (sides.some((side) => side.canvas.width !== Math.max(160, Math.floor(side.canvasNode.parentNode.clientWidth)))) redraw();
  }).observe(root);
  function speak() {
    for (const side of sides) {
      for (const [request, chip] of side.chips) chip.setAttribute("aria-label", teller.say("request", { request }));
      for (const option of side.select.options) {
        option.lang = document.documentElement.lang;
        pagedkv.write(option, teller.say("arm." + option.value));
      }
    }
  }

  new MutationObserver(() => {
    speak();
    redraw();
  }).observe(document.documentElement, { attributes: true, attributeFilter: ["lang", "data-theme"] });
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);

  root.hidden = false;
  speak();
  open();
  // It opens at the fullest moment of that side, which the pictures above show as well.
  const curve = main.curve;
  player.peak = curve.reduce((best, one, i) => (one.live >= curve[best].live ? i : best), 0);
  go(after(main, player.peak), performance.now());

  // For the tests and the benchmark.
  pagedkv.player = {
    go: (position) => {
      player.peak = null;
      go(position, performance.now());
    },
    play, speeds: SPEEDS, state: player,
    counters: () => sides.map((side) => ({ arm: side.film.arm, step: (side.pool.frame() || { n: null }).n, ...side.pool.counters() })),
  };
})();
