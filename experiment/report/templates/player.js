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
    percent: (value) => fixed(value * 100, 1) + "\u00a0%",
    seconds: seconds,
  };

  // As Python writes it: a tie goes to the even digit, where toFixed takes the larger one.
  function fixed(value, digits) {
    const scaled = value * 10 ** digits;
    const low = Math.floor(scaled);
    const tie = Number.isInteger(value * 2 ** (digits + 1)) && scaled - low === 0.5;
    return (tie && low % 2 === 0 ? low / 10 ** digits : value).toFixed(digits);
  }

  function grouped(value, digits) {
    return Number(fixed(value, digits)).toLocaleString("en-US", { minimumFractionDigits: digits, maximumFractionDigits: digits });
  }

  // Three digits at least: milliseconds below one second.
  function seconds(value) {
    if (!value) return "0\u00a0s";
    if (value >= 0.9995) return (value < 100 ? fixed(value, 2) : grouped(value, 0)) + "\u00a0s";
    const digits = [99.95, 9.995, 0.9995].filter((limit) => value * 1000 < limit).length;
    return fixed(value * 1000, digits) + "\u00a0ms";
  }

  function bytes(value) {
    for (const [unit, scale] of [["GiB", 2 ** 30], ["MiB", 2 ** 20], ["KiB", 2 ** 10]]) {
      if (value >= (scale * 1000) / 1024) {
        const scaled = value / scale;
        const digits = Number.isInteger(scaled) ? 0 : scaled >= 100 ? 1 : 2;
        return grouped(scaled, digits) + "\u00a0" + unit;
      }
    }
    return grouped(value, 0) + "\u00a0B";
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
    if (node.said === text) return;
    node.said = text;
    const only = node.firstChild;
    if (only && only === node.lastChild && only.nodeType === Node.TEXT_NODE) only.data = text;
    else node.textContent = text;
  }

  // Where a number came from and how it is written. Nobody looks numbers up in a film that plays:
  // then the page carries none, rather than those of another step.
  function keyed(node, key, kind) {
    if (player.playing) return;
    node.dataset.key = key;
    node.dataset.as = kind;
  }

  function unkeyed(within) {
    for (const node of within.querySelectorAll("[data-key]")) node.removeAttribute("data-key");
  }

  // A text that has no number of the run.
  function plain(node, text) {
    write(node, text);
    node.removeAttribute("data-key");
  }

  // A sentence of the catalogue whose numbers are looked up by these paths.
  function tellKeyed(node, name, values, paths) {
    write(node, say(name, values));
    if (player.playing) return;
    const key = Object.entries(paths).map(([name, path]) => `${name}=${path}`).join("; ");
    keyed(node, key, "player." + name);
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
        share: one(".waste-share"), bar: all(".split rect"), happened: one(".happened"), ended: one(".ended"),
        at: one(".strip-at"), pool: one(".pool"), chips: one(".chips"), more: one(".chips-more"), head: one(".table-head"), entries: one(".table-entries"),
      };
    }

    open(film, scale) {
      this.film = film;
      this.pool = new pagedkv.Pool(film);
      this.canvas = new pagedkv.Canvas(this.canvasNode, this.pool, scale);
      this.curve = curveOf(film);
      this.totals = totalsOf(film);
      this.told = film.frames.map((frame) => [...told(frame)]);
      this.eventful = film.frames.map((_, i) => i).filter((i) => this.told[i].length);
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
      const next = onwards && index !== before ? this.film.frames[index] : null;
      // Blocks of those that this frame ends: afterwards nobody knows whose they were.
      const left = ((next && next.g) || []).map((request) => [request, (this.pool.holders.get(request) || { table: [] }).table]);
      this.pool.seek(index);
      if (still.matches || !onwards) this.canvas.expire(now, true);
      if (next) this.mark(next, left, now);
      return before !== this.pool.at;
    }

    mark(frame, left, now) {
      for (const [, , added] of frame.h || []) this.canvas.mark("allocated", pagedkv.unpack(added), now);
      for (const [request, table] of left) {
        const lost = (frame.p || []).includes(request) ? "preempted" : "freed";
        this.canvas.mark(lost, table.filter((block) => !this.pool.owners[block].length), now);
      }
      this.canvas.mark("copied", (frame.y || []).map((pair) => pair[2]), now);
      this.canvas.mark("evicted", (frame.e || []).filter((block) => !this.pool.owners[block].length), now);
    }

    // Where the step that is shown lies; before the first one, the pool as it was reserved.
    path(list) {
      const frame = this.pool.frame();
      return frame ? `${list}[${this.film.arm}][${frame.n}]` : `pools[${this.film.arm}].empty`;
    }

    counters() {
      const counted = this.pool.counters();
      const frame = this.pool.frame();
      const at = this.path("steps");
      for (const cell of this.cells.counters) {
        const name = cell.dataset.counter;
        keyed(cell, `${at}.${name}`, "count");
        write(cell, WRITERS.count(counted[name]));
      }
      for (const cell of this.cells.sizes) {
        const name = cell.dataset.size;
        keyed(cell, `${at}.${name} * pools[${this.film.arm}].slot_bytes`, "bytes");
        write(cell, bytes(counted[name] * this.film.slotBytes));
      }
      const share = counted.allocated ? counted.wasted / counted.allocated : null;
      tellKeyed(this.nodes.share, "waste_share", { share }, { share: `${at}.wasted / ${at}.allocated` });
      const bar = this.nodes.bar;
      const total = Math.max(counted.reserved, 1);
      bar[0].setAttribute("width", (counted.live / total) * 100 + "%");
      bar[1].setAttribute("x", (counted.live / total) * 100 + "%");
      bar[1].setAttribute("width", (counted.wasted / total) * 100 + "%");
      this.happened(frame, counted);
      return counted;
    }

    happened(frame, counted) {
      const sums = this.totals[this.pool.at + 1];
      const at = this.path("moments");
      const values = {
        running: counted.running, waiting: (frame && frame.q) || 0, shared: counted.shared,
        preempted: sums.preempted, copied: sums.copied, evicted: sums.evicted,
      };
      const paths = {
        running: `${at}.running`, waiting: `${at}.waiting`, shared: `${this.path("steps")}.shared`,
        preempted: `${at}.preempted`, copied: `${at}.copied`, evicted: `${at}.evicted`,
      };
      tellKeyed(this.nodes.happened, "happened", values, paths);
      this.ended(frame);
    }

    // A side whose run is over stays as it was after its last step.
    ended(frame) {
      const over = !byTime() && frame && this.pool.at === this.pool.length - 1 && player.step > frame.n;
      this.nodes.ended.hidden = !over;
      if (over) tellKeyed(this.nodes.ended, "ended", { step: frame.n }, { step: `${this.path("steps")}.step` });
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
      const svg = find(".strip svg", this.node);
      svg.setAttribute("viewBox", `0 0 ${count} 40`);
      find(".strip-allocated", svg).setAttribute("d", line("allocated"));
      find(".strip-live", svg).setAttribute("d", line("live"));
    }

    // Moved by the compositor alone: the curve below it is not drawn again.
    cursor() {
      const at = ((this.pool.at + 0.5) / this.curve.length) * 100;
      this.nodes.at.style.transform = `translateX(${Math.max(at, 0).toFixed(3)}%)`;
    }

    thinned() {
      const { every, steps, arm } = this.film;
      const [thinned, rows] = find(".thinned", this.node).children;
      thinned.hidden = every === 1;
      rows.hidden = !this.canvas.hidden;
      if (every > 1) tellKeyed(thinned, "thinned", { every, steps }, { every, steps: `length moments[${arm}]` });
      if (this.canvas.hidden) tellKeyed(rows, "hidden_rows", { n: this.canvas.hidden }, { n: this.canvas.hidden });
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
      if (more > 0) tellKeyed(this.nodes.more, "more_requests", { n: more }, { n: `length ${this.path("moments")}.holders - ${CHIPS}` });
      else plain(this.nodes.more, "");
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

    // The block table of a request; of the first one where none is chosen.
    table(request) {
      const body = this.nodes.entries;
      if (request === null) request = this.pool.holders.keys().next().value;
      const holder = this.pool.holders.get(request);
      if (!holder) {
        if (request === undefined) plain(this.nodes.head, say("choose"));
        else tellKeyed(this.nodes.head, "holds_nothing", { request }, { request });
        body.replaceChildren();
        return;
      }
      this.tableHead(request, holder);
      const entries = this.film.elastic ? [] : holder.table.slice(0, ENTRIES);
      while (body.childNodes.length > entries.length) body.lastChild.remove();
      entries.forEach((block, logical) => this.entry(body, [request, holder], block, logical));
    }

    tableHead(request, holder) {
      const slots = holder.table.length * this.film.size;
      const values = {
        request, written: holder.written, blocks: holder.table.length, slots,
        wasted: holder.ended ? slots : slots - holder.written,
      };
      const at = `${this.path("moments")}.holders[${request}]`;
      const paths = Object.fromEntries(Object.keys(values).map((name) => [name, `${at}.${name}`]));
      tellKeyed(this.nodes.head, holder.ended ? "table_ended" : "table", values, paths);
    }

    entry(body, [request, holder], block, logical) {
      let item = body.childNodes[logical];
      if (!item) {
        item = document.createElement("li");
        item.append(document.createElement("b"), document.createElement("small"), document.createElement("i"));
        body.append(item);
      }
      const [place, slots, bar] = item.children;
      const size = this.film.size;
      const filled = Math.min(Math.max(holder.padding + holder.written - logical * size, 0), size);
      const owners = this.pool.owners[block].length;
      if (bar.filled !== filled) bar.style.transform = `scaleX(${(bar.filled = filled) / size})`;
      write(place, `${logical} → ${block}`);
      write(slots, `${filled}/${size}` + (owners > 1 ? ` ×${owners}` : ""));
      if (player.playing) return;
      const at = `${this.path("moments")}.holders[${request}].table.${logical}`;
      keyed(place, at, "player.entry_place");
      keyed(slots, at, "player.entry_slots");
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
  // The right side, and the only one of a run with one arm.
  const main = sides[sides.length - 1];
  const slider = find("#player-position");
  const playButton = find("#player-play");
  const speed = find("#player-speed");
  const player = { at: 0, end: 0, step: -1, times: [], playing: false, pinned: null, hovered: null, owed: 0, last: 0 };

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
    where(find("#player-where"));
    slider.setAttribute("aria-valuetext", find("#player-where").textContent);
    showHistory();
    // Nobody wants to hear every step of a film.
    if (!player.playing) status();
  }

  // The step of the log, or the second, that is shown.
  function where(node) {
    if (!player.at) return plain(node, say("at_start"));
    if (byTime()) {
      const time = player.times[player.at - 1];
      const side = sides.find((one) => one.pool.frame() && one.pool.frame().t === time);
      return tellKeyed(node, "at_time", { time }, { time: `${side.path("moments")}.at` });
    }
    const longest = sides.find((side) => lastStep(side.film) === player.most);
    const steps = `steps[${longest.film.arm}]`;
    const side = sides.reduce((one, other) => ((other.pool.frame() || { n: -1 }).n > (one.pool.frame() || { n: -1 }).n ? other : one));
    const step = side.pool.frame().n;
    tellKeyed(node, "at_step", { step, last: player.most }, { step: `${side.path("steps")}.step`, last: `max ${steps}.*.step` });
  }

  function status() {
    const node = find("#player-status");
    while (node.children.length <= sides.length) node.append(document.createElement("span"), " ");
    const parts = node.children;
    where(parts[0]);
    sides.forEach((side, i) => {
      const names = ["reserved", "allocated", "live", "wasted"];
      const at = side.path("steps");
      const values = { arm: say("arm." + side.film.arm), ...side.pool.counters() };
      const paths = { arm: `@arm_name.${side.film.arm.replace(/\./g, "_")}`, running: `${side.path("moments")}.running` };
      for (const name of names) paths[name] = `${at}.${name}`;
      tellKeyed(parts[i + 1], "status", values, paths);
    });
  }

  // ---- what happens, in words ----

  // What a frame did, the first of it first: [sentence, its numbers, the list in the log].
  function* told(frame) {
    for (const [i, [request]] of (frame.f || []).entries()) yield ["finished", { request }, `finished.${i}`];
    for (const [i, request] of (frame.p || []).entries()) yield ["preempted", { request }, `preempted.${i}`];
    for (const [i, [request, old, block]] of (frame.y || []).entries()) yield ["copied", { request, old, block }, `copied.${i}`];
    if (frame.e) yield ["evicted", { n: frame.c.evicted }, "counts.evicted"];
    for (const [i, [kind, request, n]] of (frame.m || []).entries()) yield [kind, { request, n }, `moved.${i}`];
    if (frame.c && frame.c.allocated) yield ["allocated", { n: frame.c.allocated }, "counts.allocated"];
  }

  // The latest events of both sides up to where they are, the last first.
  function latest() {
    const lines = [];
    const clock = byTime() ? "t" : "n";
    for (const side of sides) {
      const until = before(side.eventful.length, (i) => side.eventful[i] <= side.pool.at);
      for (let i = until - 1, found = 0; i >= 0 && found < HISTORY; i--) {
        const frame = side.film.frames[side.eventful[i]];
        for (const [key, values, path] of side.told[side.eventful[i]].slice().reverse()) {
          found += 1;
          lines.push({ side, frame, key, values, path, when: frame[clock] });
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
    lines.forEach(({ side, frame, key, values, path }, i) => {
      let item = list.childNodes[i];
      if (!item) {
        item = list.appendChild(document.createElement("li"));
        item.append(document.createElement("span"), " ", document.createElement("span"));
      }
      const arm = side.film.arm;
      const step = `steps[${arm}][${frame.n}].step`;
      tellKeyed(item.children[0], "event_line", { step: frame.n, arm: say("arm." + arm) }, { step, arm: `@arm_name.${arm.replace(/\./g, "_")}` });
      const at = `happened[${arm}][${frame.n}:${side.film.every}].${path}`;
      const paths = Object.fromEntries(Object.keys(values).map((name) => [name, key === "evicted" || key === "allocated" ? at : `${at}.${name}`]));
      tellKeyed(item.children[1], "event." + key, values, paths);
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
    if (on) unkeyed(root);
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

  // To where a side has just done its frame `index`; -1 is the beginning.
  function goTo(side, index) {
    const frame = index < 0 ? null : side.film.frames[index];
    if (!frame) return go(0, performance.now());
    go(byTime() ? player.times.indexOf(frame.t) + 1 : Math.floor(frame.n / side.film.every) + 1, performance.now());
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
    const [name, values, paths] = blockFacts(side, canvas.cursor);
    tellKeyed(find("#player-block"), name, values, paths);
  }

  // What is said of a block: the sentence, its numbers and where they lie.
  function blockFacts(side, block) {
    const at = `${side.path("moments")}.blocks[${block}]`;
    const owners = side.pool.owners[block];
    if (!owners.length) return [side.pool.cached.has(block) ? "block_cached" : "block_free", { block }, { block }];
    const [, filled] = side.pool.part(block);
    const values = { block, owners: owners.join(", "), filled, size: side.film.size, logical: side.pool.place[block] };
    return ["block", values, Object.fromEntries(Object.keys(values).map((name) => [name, `${at}.${name}`]))];
  }

  function blockText(side, block) {
    const [name, values] = blockFacts(side, block);
    return say(name, values);
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
      const frame = Math.min(Math.floor(((event.clientX - box.left) / box.width) * side.film.frames.length), side.film.frames.length - 1);
      goTo(side, frame);
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
      const frame = main.pool.at;
      measure();
      goTo(main, frame);
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
  // It opens at the fullest moment of that side, which the pictures above show as well.
  const curve = main.curve;
  goTo(main, curve.reduce((best, one, i) => (one.live >= curve[best].live ? i : best), 0));

  // For the tests and the benchmark.
  pagedkv.player = {
    go: (position) => go(position, performance.now()),
    play, speeds: SPEEDS, state: player,
    counters: () => sides.map((side) => ({ arm: side.film.arm, step: (side.pool.frame() || { n: null }).n, ...side.pool.counters() })),
  };
})();
