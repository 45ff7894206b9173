// One side of the player: an arm's pool, its counters, the strip below it, its requests and tables.
pagedkv.CHIPS = 32;
pagedkv.ENTRIES = 96;
pagedkv.STILL = window.matchMedia("(prefers-reduced-motion: reduce)");

pagedkv.Side = class {
  // `stage` is what both sides share: teller, state, byTime(), choose(request, pin), hover(request).
  constructor(node, stage) {
    this.node = node;
    this.stage = stage;
    this.teller = stage.teller;
    this.select = node.querySelector("select");
    this.canvasNode = node.querySelector("canvas");
    this.chips = new Map();
    const all = (selector) => [...node.querySelectorAll(selector)];
    const one = (selector) => node.querySelector(selector);
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
    this.curve = pagedkv.curveOf(film);
    this.totals = pagedkv.totalsOf(film);
    this.told = film.frames.map((frame) => [...pagedkv.told(frame)]);
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
    if (pagedkv.STILL.matches || !onwards) this.canvas.expire(now, true);
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

  counters() {
    const counted = this.pool.counters();
    const frame = this.pool.frame();
    for (const cell of this.cells.counters) pagedkv.write(cell, pagedkv.WRITERS.count(counted[cell.dataset.counter]));
    for (const cell of this.cells.sizes) pagedkv.write(cell, pagedkv.WRITERS.bytes(counted[cell.dataset.size] * this.film.slotBytes));
    const share = counted.allocated ? counted.wasted / counted.allocated : null;
    this.teller.tell(this.nodes.share, "waste_share", { share });
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
    const values = {
      running: counted.running, waiting: (frame && frame.q) || 0, shared: counted.shared,
      preempted: sums.preempted, copied: sums.copied, evicted: sums.evicted,
    };
    this.teller.tell(this.nodes.happened, "happened", values);
    this.ended(frame);
  }

  // A side whose run is over stays as it was after its last step.
  ended(frame) {
    const over = !this.stage.byTime() && frame && this.pool.at === this.pool.length - 1 && this.stage.state.step > frame.n;
    this.nodes.ended.hidden = !over;
    if (over) this.teller.tell(this.nodes.ended, "ended", { step: frame.n });
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
    const svg = this.node.querySelector(".strip svg");
    svg.setAttribute("viewBox", `0 0 ${count} 40`);
    svg.querySelector(".strip-allocated").setAttribute("d", line("allocated"));
    svg.querySelector(".strip-live").setAttribute("d", line("live"));
  }

  // Moved by the compositor alone: the curve below it is not drawn again.
  cursor() {
    const at = ((this.pool.at + 0.5) / this.curve.length) * 100;
    this.nodes.at.style.transform = `translateX(${Math.max(at, 0).toFixed(3)}%)`;
  }

  thinned() {
    const { every, steps, arm } = this.film;
    const [thinned, rows] = this.node.querySelector(".thinned").children;
    thinned.hidden = every === 1;
    rows.hidden = !this.canvas.hidden;
    if (every > 1) this.teller.tell(thinned, "thinned", { every, steps });
    if (this.canvas.hidden) this.teller.tell(rows, "hidden_rows", { n: this.canvas.hidden });
    this.canvasNode.setAttribute("aria-label", this.teller.say("canvas", { arm: this.teller.say("arm." + arm) }));
  }

  // A button for each request that holds memory, in the order of the pool.
  requests(chosen) {
    const list = this.nodes.chips;
    const shown = [];
    for (const request of this.pool.holders.keys()) if (shown.push(request) === pagedkv.CHIPS) break;
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
      const chip = this.chips.get(request);
      chip.setAttribute("aria-pressed", String(request === chosen));
    }
    const more = this.pool.holders.size - shown.length;
    if (more > 0) this.teller.tell(this.nodes.more, "more_requests", { n: more });
    else pagedkv.write(this.nodes.more, "");
  }

  chip(request) {
    const chip = document.createElement("button");
    chip.type = "button";
    chip.className = "chip";
    chip.style.setProperty("--request", pagedkv.COLOURS[request % pagedkv.COLOURS.length]);
    chip.dataset.tile = (request + Math.floor(request / 7)) % 5;
    chip.textContent = request;
    chip.setAttribute("aria-label", this.teller.say("request", { request }));
    chip.addEventListener("click", () => this.stage.choose(this.stage.state.pinned === request ? null : request, true));
    chip.addEventListener("pointerenter", () => this.stage.hover(request));
    chip.addEventListener("focus", () => this.stage.hover(request));
    return chip;
  }

  // The block table of a request; of the first one where none is chosen.
  table(request) {
    const body = this.nodes.entries;
    if (request === null) request = this.pool.holders.keys().next().value;
    const holder = this.pool.holders.get(request);
    if (!holder) {
      if (request === undefined) this.teller.tell(this.nodes.head, "choose");
      else this.teller.tell(this.nodes.head, "holds_nothing", { request });
      body.replaceChildren();
      return;
    }
    this.tableHead(request, holder);
    const entries = this.film.elastic ? [] : holder.table.slice(0, pagedkv.ENTRIES);
    while (body.childNodes.length > entries.length) body.lastChild.remove();
    entries.forEach((block, logical) => this.entry(body, holder, block, logical));
  }

  tableHead(request, holder) {
    const slots = holder.table.length * this.film.size;
    const values = {
      request, written: holder.written, blocks: holder.table.length, slots,
      wasted: holder.ended ? slots : slots - holder.written,
    };
    this.teller.tell(this.nodes.head, holder.ended ? "table_ended" : "table", values);
  }

  entry(body, holder, block, logical) {
    let item = body.childNodes[logical];
    if (!item) {
      item = document.createElement("li");
      item.append(document.createElement("b"), document.createElement("small"), document.createElement("i"));
      body.append(item);
    }
    const [place, slots, bar] = item.children;
    const size = this.film.size;
    // Of this block: what is before the request's own slots, and what it has written behind that.
    const before = this.pool.clamp(holder.padding - logical * size);
    const filled = this.pool.clamp(holder.padding + holder.written - logical * size) - before;
    const owners = this.pool.owners[block].length;
    if (bar.filled !== filled || bar.before !== before) {
      bar.style.left = `${100 * (bar.before = before) / size}%`;
      bar.style.transform = `scaleX(${(bar.filled = filled) / size})`;
    }
    pagedkv.write(place, `${logical} → ${block}`);
    pagedkv.write(slots, `${filled}/${size}` + (owners > 1 ? ` ×${owners}` : ""));
  }
};

// Counters after every frame, for the strip below the pool.
pagedkv.curveOf = function (film) {
  const pool = new pagedkv.Pool(film);
  return film.frames.map((frame, index) => {
    pool.seek(index);
    pool.dirty.clear();
    return pool.counters();
  });
};

// What had happened until each frame.
pagedkv.totalsOf = function (film) {
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
};

// What a frame did, the first of it first: [sentence, its numbers].
pagedkv.told = function* (frame) {
  for (const [request] of frame.f || []) yield ["finished", { request }];
  for (const request of frame.p || []) yield ["preempted", { request }];
  for (const [request, old, block] of frame.y || []) yield ["copied", { request, old, block }];
  if (frame.e) yield ["evicted", { n: frame.c.evicted }];
  for (const [kind, request, n] of frame.m || []) yield [kind, { request, n }];
  if (frame.c && frame.c.allocated) yield ["allocated", { n: frame.c.allocated }];
};
