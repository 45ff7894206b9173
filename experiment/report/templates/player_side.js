// One side of the player: an arm's pool, the block table below it with lines to its blocks, the block
// that is pointed at in words, the counters.
pagedkv.ENTRY = { width: 58, height: 34, gap: 4, above: 24, lines: 48 }; // in pixels, and numbers
pagedkv.STILL = window.matchMedia("(prefers-reduced-motion: reduce)");
// The sample of the legend that shows an event on its blocks.
pagedkv.SAMPLE_OF = {
  allocated: "new", returned: "new", merged: "new", copied: "copied", freed: "freed", finished: "freed",
  preempted: "evicted", swapped: "evicted", evicted: "evicted",
};

pagedkv.Side = class {
  // `stage` is what both sides share: teller, state, byTime(), hover(target, event), follow(token, request).
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
      notes: one(".thinned"),
    };
    const { entries } = this.nodes;
    entries.addEventListener("pointermove", (event) => stage.hover({ request: null, side: this, block: this.entryAt(event).block }, event));
    entries.addEventListener("pointerleave", () => stage.hover(null));
    entries.addEventListener("scroll", () => this.arrows());
    entries.addEventListener("click", (event) => this.askFor(this.entryAt(event)));
  }

  open(film) {
    this.film = film;
    this.facts = pagedkv.read(film);
    this.pool = new pagedkv.Pool(film);
    this.canvas = new pagedkv.Canvas(this.canvasNode, this.pool, (block, width) => this.names(block, width));
    const ever = Object.values(this.facts.totals.at(-1)).some(Boolean);
    this.nodes.counts.hidden = !ever && !film.frames.some((frame) => frame.q) && !this.has("shared");
    for (const one of this.cells.states) one.hidden = !this.has(one.dataset.state);
  }

  // Whether a count is ever other than 0.
  has(name) {
    return this.facts.curve.some((counted) => counted[name]);
  }

  // The last frame that is not beyond a position: `name` is n (a step) or t (a second). After a side's
  // run its last picture stays.
  show(name, position, now, onwards) {
    const frames = this.film.frames.slice(0, this.facts.useful + 1);
    const index = frames.findLastIndex((frame) => frame[name] <= position);
    const next = onwards && index === this.pool.at + 1;
    this.pool.seek(index);
    if (pagedkv.STILL.matches || !onwards) this.canvas.expire(Infinity);
    for (const { key, blocks } of next ? this.facts.told[index] : []) {
      const kind = pagedkv.SAMPLE_OF[key];
      const left = kind === "freed" || kind === "evicted";
      if (kind) this.canvas.mark(kind, blocks.filter((block) => !left || !this.pool.owners[block].length), now);
    }
  }

  draw(request) {
    const { canvas, pool } = this;
    const chosen = pool.holders.has(request) ? request : null; // else nothing to set off from the others
    const block = this.pointed;
    pool.all = pool.all || canvas.chosen !== chosen;
    if (canvas.cursor !== block) pool.touch([canvas.cursor, block].filter((one) => one !== null));
    canvas.chosen = chosen;
    canvas.cursor = block;
    canvas.draw();
  }

  // ---- in numbers ----

  counters() {
    const counted = this.pool.counters();
    const { count, bytes } = pagedkv.WRITERS;
    for (const cell of this.cells.counters) pagedkv.write(cell, count(counted[cell.dataset.counter]));
    for (const cell of this.cells.sizes) pagedkv.write(cell, bytes(counted[cell.dataset.size] * this.film.slotBytes));
    this.teller.tell(this.nodes.wasted, "wasted_share", { share: counted.allocated ? counted.wasted / counted.allocated : null });
    const values = { waiting: this.film.frames[this.pool.at]?.q, shared: counted.shared, ...this.facts.totals[this.pool.at + 1] };
    const some = Object.keys(values).filter((name) => values[name]);
    pagedkv.write(this.nodes.counts, some.map((name) => this.teller.say("count." + name, { n: values[name] })).join(" · "));
  }

  // A side whose run is over keeps its last picture that holds something.
  done() {
    const { useful, seconds, took } = this.facts;
    this.nodes.done.hidden = this.stage.byTime() ? this.stage.state.clock < seconds : this.pool.at < useful;
    this.teller.tell(this.nodes.done, "done", { time: took });
  }

  // What is to be said of the drawing, in the language of the page.
  notes() {
    const { every, steps, arm } = this.film;
    const { hidden } = this.canvas;
    const notes = [every > 1 && this.teller.say("thinned", { every, steps }), hidden && this.teller.say("hidden_rows", { n: hidden })];
    pagedkv.write(this.nodes.notes, notes.filter(Boolean).join(" "));
    this.canvasNode.setAttribute("aria-label", this.teller.say("canvas", { arm: this.teller.say("arm." + arm) }));
  }

  // ---- one block ----

  // The block under the pointer, or the one that was chosen.
  get pointed() {
    const { hovered, pinned } = this.stage.state;
    return [hovered, pinned].find((target) => target && target.side === this && target.block !== null)?.block ?? null;
  }

  // What a block is labelled with in the pool, the longest first.
  names(block, width) {
    const owners = this.pool.owners[block];
    const number = String(block);
    const shared = owners.length > 1 ? [`${number} ×${owners.length}`] : [];
    if (width > 90 && owners.length) shared.unshift(this.teller.say("label", { blocks: this.list([block]), owners: owners.join(", ") }));
    return [...shared, number];
  }

  // The block pointed at, what it holds and what happened to it.
  about() {
    const block = this.pointed;
    this.nodes.about.classList.toggle("hint", block === null);
    pagedkv.write(this.nodes.about, block === null ? this.teller.say("about_hint") : `${this.blockText(block)} ${this.story(block)}`);
  }

  blockText(block) {
    const owners = this.pool.owners[block].join(", ");
    const [padding, filled] = this.pool.part(block);
    const key = owners ? (padding ? "block_padded" : "block") : this.pool.cached.has(block) ? "block_cached" : block < this.film.engine ? "block_engine" : "block_free";
    const name = this.list([block]);
    const blocks = name[0].toUpperCase() + name.slice(1);
    return this.teller.say(key, { blocks, owners, padding, filled: filled - padding, size: this.film.size, logical: this.pool.place[block] });
  }

  // The latest of what happened to a block, and the next of what will.
  story(block) {
    const past = [];
    const later = [];
    this.facts.told.forEach((events, at) => {
      for (const { key, request, blocks, old } of events) {
        const own = blocks.includes(block);
        if (!own && old !== block) continue;
        const values = { step: this.film.frames[at].n, request, old, block: blocks[0] };
        (at > this.pool.at ? later : past).push(this.teller.say("history." + (own ? key : "lent"), values));
      }
    });
    if (later.length) later[0] = `${this.teller.say("later")} ${later[0]}`;
    return (past.length > 4 ? "… " : "") + [...past.slice(-4), ...later.slice(0, 2)].join(" · ");
  }

  // "block 19", "blocks 3–7, 9" or "slab 0".
  list(blocks) {
    const parts = [];
    for (let i = 0; i < blocks.length; i++) {
      const start = blocks[i];
      while (blocks[i + 1] === blocks[i] + 1) i++;
      parts.push(start === blocks[i] ? String(start) : `${start}–${blocks[i]}`);
    }
    if (parts.length > 6) parts.splice(5, parts.length, "…");
    const [one, many] = this.film.slab ? ["slab", "slabs"] : ["block_one", "blocks"];
    return this.teller.say(blocks.length > 1 ? many : one, { list: parts.join(", ") });
  }

  // ---- the block table ----

  // Of a request, or of the first one that holds memory, where `request` is null.
  table(request) {
    const [first] = this.pool.holders.keys();
    this.request = request ?? first ?? null;
    const holder = (this.shown = this.pool.holders.get(this.request) || null);
    const { elastic, slab, size } = this.film;
    const body = this.nodes.entries;
    const table = holder && !elastic ? holder.table : [];
    if (holder) body.style.setProperty("--request", pagedkv.colour(this.request));
    while (body.childNodes.length > table.length) body.lastChild.remove();
    table.forEach((block, logical) => this.entry(body.childNodes[logical], block, logical));
    const key = !holder ? "holds_nothing" : holder.ended ? "table_ended" : elastic ? "table_growing" : slab ? "table_slab" : "table";
    const values = { request: this.request, written: holder?.written, slots: holder?.table.length * size };
    pagedkv.write(this.nodes.head, this.request === null ? "" : this.teller.say(key, values));
    this.address();
    this.arrows();
  }

  entry(item, block, logical) {
    if (!item) {
      item = this.nodes.entries.appendChild(document.createElement("li"));
      item.innerHTML = "<b></b><small></small><i></i>";
    }
    const [place, slots, bar] = item.children;
    const { pool, shown: { padding, written } } = this;
    // Of this block: what is before the request's own slots, and what it has written behind that.
    const before = pool.clamp(padding - logical * pool.size);
    const filled = pool.clamp(padding + written - logical * pool.size) - before;
    const owners = pool.owners[block].length;
    bar.style.left = `${(100 * before) / pool.size}%`;
    bar.style.transform = `scaleX(${filled / pool.size})`;
    item.classList.toggle("lit", block === this.pointed);
    pagedkv.write(place, `${logical} → ${block}`);
    pagedkv.write(slots, `${filled}/${pool.size}` + (owners > 1 ? ` ×${owners}` : ""));
  }

  // The entry under the pointer: its block, and the slot of the request at that place of it.
  entryAt(event) {
    const item = event.target.closest("li");
    if (!item) return { block: null, slot: null };
    const logical = [...this.nodes.entries.children].indexOf(item);
    const box = item.getBoundingClientRect();
    const slot = Math.floor((logical + (event.clientX - box.left) / box.width) * this.film.size);
    return { block: this.shown.table[logical], slot };
  }

  // A click on an entry asks for the token at that place of its block.
  askFor({ slot }) {
    if (slot === null) return;
    const { padding, written } = this.shown;
    this.stage.follow(Math.max(0, Math.min(slot - padding, written - 1)), this.request);
  }

  // From the position of a token to its slot; of the newest where none is asked for.
  address() {
    const { request, shown: holder, nodes: { address } } = this;
    this.slot = null;
    if (!holder || this.film.elastic || holder.ended) return pagedkv.write(address, "");
    const { padding, table, written } = holder;
    const token = this.stage.state.token ?? written - 1;
    if (token < 0 || token >= written) return this.teller.tell(address, "address_none", { request, token });
    const size = this.film.size;
    const place = token + padding;
    const logical = Math.floor(place / size);
    const offset = place % size;
    const block = table[logical];
    this.slot = { logical, offset };
    this.teller.tell(address, padding ? "address_padded" : "address", { token, place, padding, size, logical, offset, block, slot: block * size + offset });
  }

  // Lines from the entries to their blocks, and one to the slot of the token.
  arrows() {
    const { width, height, gap, above, lines } = pagedkv.ENTRY;
    const { canvas, film, shown, slot } = this;
    const count = shown && !film.elastic ? shown.table.length : 0;
    const fits = (wide) => Math.max(1, Math.floor((wide + gap) / (width + gap)));
    // A scroll bar takes room; without one nothing needs to be measured.
    const wide = count > 2 * fits(canvas.width) ? this.nodes.entries.clientWidth : canvas.width;
    const columns = fits(wide);
    const step = (wide + gap) / columns;
    const first = canvas.height + above;
    const bend = first - above / 2;
    const line = (logical, offset, radius) => {
      const top = Math.floor(logical / columns) * (height + gap) - this.nodes.entries.scrollTop;
      const middle = canvas.middle(shown.table[logical], offset);
      if (!middle || top < -height / 2 || top > 1.5 * height) return "";
      // From the top of the first row; from the side of the second, between the columns of the first.
      const x = (logical % columns) * step + (top > 0 ? -gap / 2 : (step - gap) / 2);
      const [left, up] = middle;
      const dot = `M${left - radius} ${up}a${radius} ${radius} 0 1 0 ${2 * radius} 0a${radius} ${radius} 0 1 0-${2 * radius} 0`;
      return `${dot}M${x} ${first + (top > 0 ? top + height / 2 : 0)}V${first}C${x} ${bend} ${left} ${bend} ${left} ${up}`;
    };
    const drawn = count <= lines && !film.slab ? count : 0;
    const paths = Array.from({ length: drawn }, (_, logical) => line(logical, film.size >> 1, 2)).join("");
    const asked = count && slot ? line(slot.logical, slot.offset, 3) : "";
    [paths, paths, asked].forEach((path, i) => this.nodes.lines[i].setAttribute("d", path));
  }
};
