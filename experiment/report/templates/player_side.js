// One side of the player: an arm's pool, the block table below it with lines to its blocks, the block
// that is pointed at in words, the strip, the counters.
pagedkv.ENTRY = { width: 58, height: 34, gap: 4, above: 24, most: 256, lines: 48 }; // in pixels, and numbers
pagedkv.STILL = window.matchMedia("(prefers-reduced-motion: reduce)");

pagedkv.Side = class {
  // `stage` is what both sides share: teller, state, byTime(), follow(token).
  constructor(node, stage) {
    this.node = node;
    this.stage = stage;
    this.teller = stage.teller;
    const all = (selector) => [...node.querySelectorAll(selector)];
    const one = (selector) => node.querySelector(selector);
    this.select = one("select");
    this.opens = this.select.value;
    this.canvasNode = one("canvas");
    this.cells = { counters: all("[data-counter]"), sizes: all("[data-size]"), states: all("[data-state]") };
    this.nodes = {
      wasted: one(".wasted"), done: one(".done"), counts: one(".counts"), about: one(".about-block"), head: one(".table-head"),
      entries: one(".table-entries"), lines: all(".arrows path"), address: one(".address"),
      strip: one(".strip svg"), at: one(".strip-at"), scale: one(".strip-scale"), thinned: one(".thinned"),
    };
    this.picked = null; // a block chosen by key, click or tap
    this.lit = null; // the block under the pointer
    this.nodes.entries.addEventListener("pointermove", (event) => this.light(this.blockOf(event)));
    this.nodes.entries.addEventListener("pointerleave", () => this.light(null));
    this.nodes.entries.addEventListener("scroll", () => this.arrows());
    this.nodes.entries.addEventListener("click", (event) => this.askFor(event));
  }

  open(film) {
    this.film = film;
    this.facts = pagedkv.read(film);
    this.pool = new pagedkv.Pool(film);
    this.canvas = new pagedkv.Canvas(this.canvasNode, this.pool, (block, width) => this.names(block, width));
    this.picked = this.lit = null;
    const { curve, totals } = this.facts;
    const last = Object.values(totals[totals.length - 1]).some(Boolean);
    this.nodes.counts.hidden = !last && !film.frames.some((frame) => frame.q) && !curve.some((one) => one.shared);
    for (const one of this.cells.states) one.hidden = !curve.some((counted) => counted[one.dataset.state]);
  }

  // What the pool looks like after its frame `index`; marks only for a single step onwards.
  show(index, now, onwards) {
    const next = onwards && index === this.pool.at + 1 ? this.film.frames[index] : null;
    this.pool.seek(index);
    if (pagedkv.STILL.matches || !onwards) this.canvas.expire(now, true);
    if (!next) return;
    for (const { key, blocks } of this.facts.told[index]) {
      const kind = { finished: "freed", swapped: "preempted", returned: "allocated", merged: "allocated", shared: null }[key];
      const left = ["freed", "finished", "preempted", "swapped", "evicted"].includes(key);
      if (kind !== null) this.canvas.mark(kind || key, left ? blocks.filter((block) => !this.pool.owners[block].length) : blocks, now);
    }
  }

  draw(request, now) {
    const canvas = this.canvas;
    if (!this.pool.holders.has(request)) request = null; // nothing to set off from the others
    if (canvas.chosen !== request) {
      canvas.chosen = request;
      this.pool.all = true;
    }
    const block = this.pointed;
    if (canvas.cursor !== block) {
      for (const one of [canvas.cursor, block]) if (one !== null) this.pool.dirty.add(one);
      canvas.cursor = block;
    }
    canvas.draw(now);
  }

  // ---- in numbers ----

  counters() {
    const counted = this.pool.counters();
    for (const cell of this.cells.counters) pagedkv.write(cell, pagedkv.WRITERS.count(counted[cell.dataset.counter]));
    for (const cell of this.cells.sizes) pagedkv.write(cell, pagedkv.WRITERS.bytes(counted[cell.dataset.size] * this.film.slotBytes));
    this.teller.tell(this.nodes.wasted, "wasted_share", { share: counted.allocated ? counted.wasted / counted.allocated : null });
    const sums = this.facts.totals[this.pool.at + 1];
    const values = { waiting: (this.pool.frame() || {}).q, shared: counted.shared, preempted: sums.preempted, copied: sums.copied, evicted: sums.evicted };
    const some = Object.keys(values).filter((name) => values[name]);
    pagedkv.write(this.nodes.counts, some.map((name) => this.teller.say("count." + name, { n: values[name] })).join(" · "));
    this.done();
  }

  // A side whose run is over keeps its last picture that holds something.
  done() {
    const { useful, seconds } = this.facts;
    const over = this.stage.byTime() ? this.stage.state.clock >= seconds : this.pool.at === useful;
    this.nodes.done.hidden = !over;
    if (over) this.teller.tell(this.nodes.done, "done", { time: seconds });
  }

  // ---- the strip ----

  // Allocated and live bytes over the position, `until` the run ends; `top` bytes and the positions up
  // to `end` are those of both sides.
  drawCurve(place, end, top, until) {
    const line = (name) => {
      let path = "M0 40";
      this.facts.curve.slice(0, this.facts.useful + 1).forEach((one, i) => {
        const y = (40 - (one[name] * this.film.slotBytes / top) * 39).toFixed(1);
        path += `H${place(this.film.frames[i]).toFixed(3)}V${y}`;
      });
      return path + `H${until.toFixed(3)}V40Z`;
    };
    this.nodes.strip.setAttribute("viewBox", `0 0 ${end} 40`);
    this.nodes.strip.querySelector(".strip-allocated").setAttribute("d", line("allocated"));
    this.nodes.strip.querySelector(".strip-live").setAttribute("d", line("live"));
    this.teller.tell(this.nodes.scale, "strip_scale", { top });
  }

  // Moved by the compositor alone: the curve below it is not drawn again.
  cursor(share) {
    this.nodes.at.style.transform = `translateX(${(100 * share).toFixed(3)}%)`;
  }

  thinned() {
    const { every, steps, arm } = this.film;
    const notes = [every > 1 && this.teller.say("thinned", { every, steps }), this.canvas.hidden && this.teller.say("hidden_rows", { n: this.canvas.hidden })];
    pagedkv.write(this.nodes.thinned, notes.filter(Boolean).join(" "));
    this.canvasNode.setAttribute("aria-label", this.teller.say("canvas", { arm: this.teller.say("arm." + arm) }));
  }

  // ---- one block ----

  get pointed() {
    return this.lit === null ? this.picked : this.lit;
  }

  light(block) {
    if (this.lit === block) return;
    this.lit = block;
    this.stage.refresh();
  }

  // What a block is labelled with in the pool, the longest first.
  names(block, width) {
    const owners = this.pool.owners[block];
    const number = String(block);
    return width > 90 && owners.length ? [this.teller.say("label", { blocks: this.list([block]), owners: owners.join(", ") }), number] : [number];
  }

  // The block pointed at, what it holds and what happened to it.
  about() {
    const block = this.pointed;
    const node = this.nodes.about;
    node.classList.toggle("hint", block === null);
    pagedkv.write(node, block === null ? this.teller.say("about_hint") : this.blockText(block) + " " + this.story(block));
  }

  blockText(block) {
    const owners = this.pool.owners[block];
    const values = { blocks: this.list([block], true) };
    if (!owners.length) return this.teller.say(this.pool.cached.has(block) ? "block_cached" : block < this.film.engine ? "block_engine" : "block_free", values);
    const [, filled] = this.pool.part(block);
    return this.teller.say("block", { ...values, owners: owners.join(", "), filled, size: this.film.size, logical: this.pool.place[block] });
  }

  // The latest of what happened to a block, and the next of what will.
  story(block) {
        const past = [];
    const later = [];
    this.facts.told.forEach((events, at) => events.forEach((event) => {
      if (!event.blocks.includes(block) && event.old !== block) return;
      const key = event.old === block && !event.blocks.includes(block) ? "lent" : event.key;
      const values = { step: this.film.frames[Math.min(at, this.facts.useful)].n + 1, request: event.request, old: event.old, block: event.blocks[0] };
      (at > this.pool.at ? later : past).push(this.teller.say("history." + key, values));
    }));
    if (later.length) later[0] = `${this.teller.say("later")} ${later[0]}`;
    return (past.length > 4 ? "… " : "") + [...past.slice(-4), ...later.slice(0, 2)].join(" · ");
  }

  // "block 19", "blocks 3–7, 9" or "slab 0"; `first`: at the beginning of a sentence.
  list(blocks, first) {
    const parts = [];
    for (let i = 0; i < blocks.length; i++) {
      const start = blocks[i];
      while (blocks[i + 1] === blocks[i] + 1) i++;
      parts.push(start === blocks[i] ? String(start) : `${start}–${blocks[i]}`);
    }
    if (parts.length > 6) parts.splice(5, parts.length, "…");
    const one = this.film.slab ? "slab" : "block_one";
    const many = this.film.slab ? "slabs" : "blocks";
    const text = this.teller.say(blocks.length > 1 ? many : one, { list: parts.join(", ") });
    return first ? text[0].toUpperCase() + text.slice(1) : text;
  }

  // ---- the block table ----

  // Of a request, or of the first one that holds memory, where `request` is null.
  table(request) {
    if (request === null) request = this.pool.holders.keys().next().value;
    const holder = this.pool.holders.get(request);
    this.shown = holder || null;
    const body = this.nodes.entries;
    if (holder) body.style.setProperty("--request", this.canvas.colour(request));
    const table = holder && !this.film.elastic ? holder.table.slice(0, pagedkv.ENTRY.most) : [];
    while (body.childNodes.length > table.length) body.lastChild.remove();
    table.forEach((block, logical) => this.entry(body, holder, block, logical));
    if (holder) {
      const key = holder.ended ? "table_ended" : this.film.elastic ? "table_growing" : this.film.slab ? "table_slab" : "table";
      this.teller.tell(this.nodes.head, key, { request, written: holder.written, slots: holder.table.length * this.film.size });
    } else if (request === undefined) pagedkv.write(this.nodes.head, "");
    else this.teller.tell(this.nodes.head, "holds_nothing", { request });
    this.address(request);
    this.arrows();
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
    item.classList.toggle("lit", block === this.pointed);
    pagedkv.write(place, `${logical} → ${block}`);
    pagedkv.write(slots, `${filled}/${size}` + (owners > 1 ? ` ×${owners}` : ""));
  }

  // Where an entry is the target: the block that it names.
  blockOf(event) {
    const item = event.target.closest("li");
    return item ? this.shown.table[[...item.parentNode.childNodes].indexOf(item)] : null;
  }

  // A click on an entry asks for the token at that place of its block.
  askFor(event) {
    const block = this.blockOf(event);
    if (block === null) return;
    const logical = this.shown.table.indexOf(block);
    const box = event.target.closest("li").getBoundingClientRect();
    const offset = Math.floor(((event.clientX - box.left) / box.width) * this.film.size);
    const last = this.shown.written - 1;
    this.stage.follow(Math.max(0, Math.min(logical * this.film.size + offset - this.shown.padding, last)));
  }

  // From the position of a token to its slot; of the newest where none is asked for.
  address(request) {
    const holder = this.shown;
    const asked = this.stage.state.token;
    const node = this.nodes.address;
    this.slot = null;
    if (!holder || this.film.elastic || holder.ended) return pagedkv.write(node, "");
    const token = asked === null ? holder.written - 1 : asked;
    if (token < 0 || token >= holder.written) return this.teller.tell(node, "address_none", { request, token });
    const size = this.film.size;
    const place = token + holder.padding;
    const logical = Math.floor(place / size);
    const offset = place % size;
    const block = holder.table[logical];
    this.slot = { logical, block, offset };
    const values = { token, place, padding: holder.padding, size, logical, offset, block, slot: block * size + offset };
    this.teller.tell(node, holder.padding ? "address_padded" : "address", values);
  }

  // Lines from the entries to their blocks, and one to the slot of the token.
  arrows() {
    const { width, height, gap, above, most, lines } = pagedkv.ENTRY;
    const canvas = this.canvas;
    const count = this.shown && !this.film.elastic ? Math.min(this.shown.table.length, most) : 0;
    const fits = (wide) => Math.max(1, Math.floor((wide + gap) / (width + gap)));
    // A scroll bar takes room; without one nothing needs to be measured.
    const wide = count > 2 * fits(canvas.width) ? this.nodes.entries.clientWidth : canvas.width;
    const columns = fits(wide);
    const step = (wide + gap) / columns;
    const scrolled = this.nodes.entries.scrollTop;
    const line = (logical, slot) => {
      const top = Math.floor(logical / columns) * (height + gap) - scrolled;
      // The last slot of a narrow block may be as small as the gap behind it.
      const from = Math.max(0, slot - Math.ceil(canvas.gap / canvas.unit));
      const piece = canvas.pieces(this.shown.table[logical], from, slot + 1).pop();
      if (!piece || top < -height / 2 || top > 1.5 * height) return "";
      // From the top of the first row; from the side of the second, between the columns of the first.
      const x = (logical % columns) * step + (top > 0 ? -gap / 2 : (step - gap) / 2);
      const first = canvas.height + above;
      const bend = first - above / 2;
      const [left, up] = [piece[0] + piece[2] - Math.min(piece[2], canvas.unit) / 2, piece[1] + piece[3] * 0.72];
      return `M${x} ${first + (top > 0 ? top + height / 2 : 0)}V${first}C${x} ${bend} ${left} ${bend} ${left} ${up}`;
    };
    const middle = this.film.size >> 1;
    const places = count <= lines && !this.film.slab ? [...Array(count).keys()] : [];
    const paths = places.map((logical) => line(logical, middle) + "m-2 0a2 2 0 1 0 4 0a2 2 0 1 0-4 0").join("");
    const asked = count && this.slot ? line(this.slot.logical, this.slot.offset) : "";
    [paths, paths, asked, asked && asked + "m-3 0a3 3 0 1 0 6 0a3 3 0 1 0-6 0"].forEach((path, i) => this.nodes.lines[i].setAttribute("d", path));
  }
};
