// The player: two pools side by side, moved by one position, with counters, tables and marks.
(function () {
  "use strict";
  const root = document.getElementById("player-stage");
  if (!root) return;
  const data = JSON.parse(document.getElementById("player-data").textContent);
  const films = new Map(data.films.map((film) => [film.arm, film]));
  const still = window.matchMedia("(prefers-reduced-motion: reduce)");
  const SPEEDS = [1, 4, 12, 30, 60];
  const CHIPS = 32;
  const ENTRIES = 96;
  const HISTORY = 5;
  const find = (selector, within) => (within || root).querySelector(selector);

  // ---- words, in the language of the page ----

  const WRITERS = {
    count: (value) => Math.round(value).toLocaleString("en-US"),
    bytes: bytes,
    percent: (value) => (value * 100).toFixed(1) + "\u00a0%",
    seconds: (value) => value.toFixed(3) + "\u00a0s",
  };

  function bytes(value) {
    for (const [unit, scale] of [["GiB", 2 ** 30], ["MiB", 2 ** 20], ["KiB", 2 ** 10]]) {
      if (value >= (scale * 1000) / 1024) {
        const scaled = value / scale;
        const digits = Number.isInteger(scaled) ? 0 : scaled >= 100 ? 1 : 2;
        return scaled.toLocaleString("en-US", { minimumFractionDigits: digits, maximumFractionDigits: digits }) + "\u00a0" + unit;
      }
    }
    return Math.round(value).toLocaleString("en-US") + "\u00a0B";
  }

  function say(key, values) {
    const text = data.texts[document.documentElement.lang][key] || key;
    return text.replace(/\{(\w+)(?::(\w+))?\}/g, (whole, name, writer) => {
      const value = (values || {})[name];
      if (value === null || value === undefined) return "—";
      return writer ? WRITERS[writer](value) : String(value);
    });
  }

  function write(node, text) {
    if (node.textContent !== text) node.textContent = text;
  }

  // ---- one side ----

  class Side {
    constructor(node, name) {
      this.node = node;
      this.name = name;
      this.select = find("select", node);
      this.canvasNode = find("canvas", node);
      this.chips = new Map();
      const all = (selector) => [...node.querySelectorAll(selector)];
      const one = (selector) => find(selector, node);
      this.cells = { counters: all("[data-counter]"), sizes: all("[data-size]"), states: all("[data-state]") };
      this.nodes = {
        share: one(".waste-share"), bar: one(".split"), happened: one(".happened"), at: one(".strip-at"),
        chips: one(".chips"), more: one(".chips-more"), head: one(".table-head"), entries: one(".table-entries"),
      };
    }

    open(film, scale) {
      this.film = film;
      this.pool = new pagedkv.Pool(film);
      this.canvas = new pagedkv.Canvas(this.canvasNode, this.pool, scale);
      this.curve = curveOf(film);
      this.totals = totalsOf(film);
      this.drawCurve();
      this.nodes.chips.replaceChildren();
      this.chips.clear();
      for (const row of this.cells.states) {
        row.hidden = !this.curve.some((one) => one[row.dataset.state]);
      }
      this.thinned();
    }

    // What the pool looks like after its frame `index`; marks only for a single step onwards.
    show(index, now, onwards) {
      const before = this.pool.at;
      const old = onwards ? this.tables() : null;
      this.pool.seek(index);
      if (still.matches || !onwards) this.canvas.expire(now, true);
      const frame = this.pool.frame();
      if (frame && before !== this.pool.at && old) this.mark(frame, old, now);
      return before !== this.pool.at;
    }

    tables() {
      return new Map([...this.pool.holders].map(([request, holder]) => [request, holder.table]));
    }

    mark(frame, old, now) {
      for (const [request, , added] of frame.h || []) {
        if (old.has(request) || added.length) this.canvas.mark("allocated", pagedkv.unpack(added), now);
      }
      for (const request of frame.g || []) {
        const lost = (frame.p || []).includes(request) ? "preempted" : "freed";
        this.canvas.mark(lost, (old.get(request) || []).filter((block) => !this.pool.owners[block].length), now);
      }
      this.canvas.mark("copied", (frame.y || []).map((pair) => pair[2]), now);
      this.canvas.mark("evicted", (frame.e || []).filter((block) => !this.pool.owners[block].length), now);
    }

    counters() {
      const counted = this.pool.counters();
      const frame = this.pool.frame();
      for (const cell of this.cells.counters) {
        const name = cell.dataset.counter;
        write(cell, WRITERS.count(counted[name]));
        if (frame) cell.dataset.key = `steps[${this.film.arm}][${frame.n}].${name}`;
        else cell.removeAttribute("data-key");
        cell.dataset.as = "count";
      }
      for (const cell of this.cells.sizes) {
        const size = cell.dataset.size;
        write(cell, bytes(counted[size] * this.film.slotBytes));
        if (frame) cell.dataset.key = `steps[${this.film.arm}][${frame.n}].${size} * ${this.film.slotBytes}`;
        else cell.removeAttribute("data-key");
        cell.dataset.as = "bytes";
      }
      const share = counted.allocated ? counted.wasted / counted.allocated : null;
      write(this.nodes.share, say("waste_share", { share }));
      const bar = this.nodes.bar;
      const total = Math.max(counted.reserved, 1);
      bar.style.setProperty("--share-live", (counted.live / total) * 100 + "%");
      bar.style.setProperty("--share-wasted", (counted.wasted / total) * 100 + "%");
      write(this.nodes.happened, this.happened(frame, counted));
      return counted;
    }

    happened(frame, counted) {
      const sums = this.totals[this.pool.at + 1];
      return say("happened", {
        running: counted.running, waiting: (frame && frame.q) || 0, preempted: sums.preempted,
        copied: sums.copied, evicted: sums.evicted, shared: counted.shared,
      });
    }

    drawCurve() {
      const top = Math.max(...this.curve.map((one) => one.reserved), 1);
      const count = this.curve.length;
      const line = (name) => {
        let path = "M0 40";
        this.curve.forEach((one, i) => {
          const y = (40 - (one[name] / top) * 38).toFixed(1);
          path += `L${i} ${y}H${i + 1}`;
        });
        return path + `V40Z`;
      };
      const svg = find(".strip", this.node);
      svg.setAttribute("viewBox", `0 0 ${count} 40`);
      find(".strip-allocated", svg).setAttribute("d", line("allocated"));
      find(".strip-live", svg).setAttribute("d", line("live"));
    }

    cursor() {
      const svg = this.nodes.at;
      svg.setAttribute("x", this.pool.at + 1);
      svg.setAttribute("width", Math.max(this.curve.length / 240, 0.2));
    }

    thinned() {
      const { every, steps, arm } = this.film;
      const note = find(".thinned", this.node);
      note.hidden = every === 1 && !this.canvas.hidden;
      const parts = [];
      if (every > 1) parts.push(say("thinned", { every, steps }));
      if (this.canvas.hidden) parts.push(say("hidden_rows", { n: this.canvas.hidden }));
      write(note, parts.join(" "));
      this.canvasNode.setAttribute("aria-label", say("canvas", { arm: say("arm." + arm) }));
    }

    // A button for each request that holds memory, in the order of the pool.
    requests(chosen) {
      const list = this.nodes.chips;
      const shown = [];
      for (const request of this.pool.holders.keys()) if (shown.push(request) === CHIPS) break;
      for (const [request, chip] of this.chips) {
        if (!shown.includes(request)) {
          chip.remove();
          this.chips.delete(request);
        }
      }
      for (const request of shown) {
        if (!this.chips.has(request)) {
          const chip = this.chip(request);
          this.chips.set(request, chip);
          list.append(chip);
        }
        this.chips.get(request).setAttribute("aria-pressed", String(request === chosen));
      }
      const more = this.pool.holders.size - shown.length;
      write(this.nodes.more, more > 0 ? say("more_requests", { n: more }) : "");
    }

    chip(request) {
      const chip = document.createElement("button");
      chip.type = "button";
      chip.className = "chip";
      chip.style.setProperty("--request", pagedkv.COLOURS[request % pagedkv.COLOURS.length]);
      chip.dataset.tile = (request + Math.floor(request / 7)) % 5;
      chip.textContent = request;
      chip.setAttribute("aria-label", say("request", { request }));
      chip.addEventListener("click", () => choose(player.pinned === request ? null : request, true));
      chip.addEventListener("pointerenter", () => hover(request));
      chip.addEventListener("focus", () => hover(request));
      return chip;
    }

    table(request) {
      const body = this.nodes.entries;
      const holder = request === null ? null : this.pool.holders.get(request);
      if (!holder) {
        write(this.nodes.head, request === null ? say("choose") : say("holds_nothing", { request }));
        if (body.childNodes.length) body.replaceChildren();
        return;
      }
      write(this.nodes.head, this.tableHead(request, holder));
      const entries = this.film.elastic ? [] : holder.table.slice(0, ENTRIES);
      while (body.childNodes.length > entries.length) body.lastChild.remove();
      entries.forEach((block, logical) => this.entry(body, holder, block, logical));
    }

    tableHead(request, holder) {
      const slots = holder.table.length * this.film.size;
      return say(holder.ended ? "table_ended" : "table", {
        request, written: holder.written, blocks: holder.table.length, slots,
        wasted: holder.ended ? slots : slots - holder.written, more: Math.max(0, holder.table.length - ENTRIES),
      });
    }

    entry(body, holder, block, logical) {
      let item = body.childNodes[logical];
      if (!item) {
        item = document.createElement("li");
        item.append(document.createElement("b"), document.createElement("small"));
        body.append(item);
      }
      const size = this.film.size;
      const filled = Math.min(Math.max(holder.padding + holder.written - logical * size, 0), size);
      const owners = this.pool.owners[block].length;
      item.style.setProperty("--fill", (filled / size) * 100 + "%");
      write(item.firstChild, `${logical} → ${block}`);
      write(item.lastChild, `${filled}/${size}` + (owners > 1 ? ` ×${owners}` : ""));
    }
  }

  // Counters after every frame, for the strip below the pool.
  function curveOf(film) {
    const pool = new pagedkv.Pool(film);
    return film.frames.map((frame, index) => {
      pool.seek(index);
      pool.dirty.clear();
      return pool.counters();
    });
  }

  // What had happened until each frame.
  function totalsOf(film) {
    const sums = [{ preempted: 0, copied: 0, evicted: 0 }];
    for (const frame of film.frames) {
      const last = sums[sums.length - 1];
      const now = frame.c || {};
      sums.push({
        preempted: last.preempted + (now.preempted || 0),
        copied: last.copied + (now.copied || 0),
        evicted: last.evicted + (now.evicted || 0),
      });
    }
    return sums;
  }

  // ---- both sides ----

  const sides = [...root.querySelectorAll(".side")].map((node, i) => new Side(node, i ? "right" : "left"));
  const slider = find("#player-position");
  const playButton = find("#player-play");
  const speed = find("#player-speed");
  const player = { at: 0, end: 0, times: [], playing: false, pinned: null, hovered: null, history: [], owed: 0, last: 0 };

  function open() {
    const chosen = sides.map((side) => films.get(side.select.value));
    const scale = pagedkv.scale(chosen);
    sides.forEach((side, i) => side.open(chosen[i], scale));
    player.times = [...new Set(chosen.flatMap((film) => film.frames.map((frame) => frame.t)))].sort((a, b) => a - b);
    player.history = [];
    measure();
  }

  function byTime() {
    return find("#player-by-time").checked;
  }

  function measure() {
    player.end = byTime() ? player.times.length : Math.max(...sides.map((side) => side.film.frames.length));
    slider.max = player.end;
  }

  function frameOf(side, position) {
    if (!byTime()) return Math.min(position, side.film.frames.length) - 1;
    if (!position) return -1;
    const time = player.times[position - 1];
    const frames = side.film.frames;
    let low = 0;
    let high = frames.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (frames[middle].t <= time) low = middle + 1;
      else high = middle;
    }
    return low - 1;
  }

  function go(position, now) {
    position = Math.max(0, Math.min(player.end, position));
    const onwards = position === player.at + 1;
    if (!onwards) player.history = [];
    player.at = position;
    for (const side of sides) {
      const moved = side.show(frameOf(side, position), now, onwards);
      if (moved) tell(side);
    }
    refresh(now);
  }

  function refresh(now) {
    const request = player.hovered !== null ? player.hovered : player.pinned;
    for (const side of sides) {
      if (side.canvas.chosen !== request) {
        side.canvas.chosen = request;
        side.pool.all = true;
      }
      side.canvas.draw(now);
      side.counters();
      side.cursor();
      side.requests(player.pinned);
      side.table(request);
    }
    slider.value = player.at;
    slider.setAttribute("aria-valuetext", where());
    write(find("#player-where"), where());
    showHistory();
    // Nobody wants to hear every step of a film.
    if (!player.playing) write(find("#player-status"), status());
  }

  function where() {
    if (byTime()) return say("at_time", { time: player.at ? player.times[player.at - 1] : 0 });
    return say("at_step", { step: player.at, steps: player.end });
  }

  function status() {
    return [where()].concat(sides.map((side) => {
      const counted = side.pool.counters();
      return say("status", { arm: say("arm." + side.film.arm), ...counted });
    })).join(" ");
  }

  // ---- what happens, in words ----

  function tell(side) {
    const frame = side.pool.frame();
    if (!frame) return;
    const arm = side.film.arm;
    const lines = [];
    for (const [request] of frame.f || []) lines.push(["finished", { request }]);
    for (const request of frame.p || []) lines.push(["preempted", { request }]);
    for (const [request, old, block] of frame.y || []) lines.push(["copied", { request, old, block }]);
    if (frame.e) lines.push(["evicted", { n: frame.c.evicted }]);
    for (const [kind, request, n] of frame.m || []) lines.push([kind, { request, n }]);
    if (frame.c && frame.c.allocated) lines.push(["allocated", { n: frame.c.allocated }]);
    for (const [key, values] of lines) player.history.unshift({ arm, step: frame.n, key, values });
    player.history.length = Math.min(player.history.length, HISTORY);
  }

  function showHistory() {
    const list = find("#player-history");
    while (list.childNodes.length > player.history.length) list.lastChild.remove();
    find("#player-quiet").hidden = player.history.length > 0;
    player.history.forEach((one, i) => {
      const item = list.childNodes[i] || list.appendChild(document.createElement("li"));
      const text = say("event." + one.key, one.values);
      write(item, say("event_line", { step: one.step, arm: say("arm." + one.arm), text }));
    });
  }

  // ---- playing ----

  function play(on) {
    if (on === player.playing) return;
    if (on && player.at >= player.end) go(0, performance.now());
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
    if (player.at >= player.end) play(false);
    else requestAnimationFrame(tick);
  }

  function step(by) {
    play(false);
    go(player.at + by, performance.now());
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
    write(find("#player-status"), blockText(side, canvas.cursor));
  }

  function blockText(side, block) {
    const owners = side.pool.owners[block];
    if (!owners.length) return say(side.pool.cached.has(block) ? "block_cached" : "block_free", { block });
    const [, filled] = side.pool.part(block);
    return say("block", { block, owners: owners.join(", "), filled, size: side.film.size, logical: side.pool.place[block] });
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
      play(false);
      if (!byTime()) go(Math.round(((event.clientX - box.left) / box.width) * side.film.frames.length), performance.now());
    });
    side.select.addEventListener("change", () => {
      play(false);
      open();
      go(Math.min(player.at, player.end), performance.now());
    });
  }

  find("#player-first").addEventListener("click", () => step(-Infinity));
  find("#player-back").addEventListener("click", () => step(-1));
  playButton.addEventListener("click", () => play(!player.playing));
  find("#player-on").addEventListener("click", () => step(1));
  find("#player-last").addEventListener("click", () => step(Infinity));
  slider.addEventListener("input", () => {
    play(false);
    go(Number(slider.value), performance.now());
  });
  for (const input of root.querySelectorAll("[name=player-axis]")) {
    input.addEventListener("change", () => {
      play(false);
      const frame = sides[1].pool.at;
      measure();
      const time = frame < 0 ? 0 : sides[1].film.frames[frame].t;
      go(byTime() ? player.times.indexOf(time) + 1 : frame + 1, performance.now());
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
      for (const [request, chip] of side.chips) chip.setAttribute("aria-label", say("request", { request }));
      for (const option of side.select.options) {
        option.lang = document.documentElement.lang;
        write(option, say("arm." + option.value));
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
  // It opens at the fullest moment of the right side, which the pictures above show as well.
  const curve = sides[1].curve;
  go(curve.reduce((best, one, i) => (one.live >= curve[best].live ? i : best), 0) + 1, performance.now());

  // For the tests and the benchmark.
  pagedkv.player = {
    go: (position) => go(position, performance.now()),
    play, speeds: SPEEDS, state: player,
    counters: () => sides.map((side) => ({ arm: side.film.arm, step: (side.pool.frame() || { n: null }).n, ...side.pool.counters() })),
  };
})();
