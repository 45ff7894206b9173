// The state of one pool at one step, from the film that film.py made. No drawing here.
//
//   owners[block]  the requests that hold it     holders[request]  table, written, padding, ended
//   part(block)    [fillers, filled, alive]      sums              slots in each state, kept as
//                                                                  blocks change
pagedkv.unpack = function (packed) {
  const blocks = [];
  for (const entry of packed) {
    if (entry < 0) {
      for (let next = blocks[blocks.length - 1] + 1; next <= -entry; next++) blocks.push(next);
    } else {
      blocks.push(entry);
    }
  }
  return blocks;
};

pagedkv.Pool = class {
  constructor(film) {
    this.film = film;
    this.size = film.size;
    this.length = film.frames.length;
    this.pictures = Object.keys(film.keys).map(Number).sort((a, b) => a - b);
    this.empty();
  }

  // Nothing has run: the pool is reserved and free.
  empty() {
    this.at = -1;
    this.holders = new Map();
    this.owners = Array.from({ length: this.film.blocks }, () => []);
    this.place = new Int32Array(this.film.blocks);
    this.known = new Map(); // what each held block adds to the sums
    this.cached = new Set();
    this.sums = { live: 0, padding: 0, finished: 0, unwritten: 0 };
    this.shared = 0;
    this.dirty = new Set();
    this.all = true; // everything must be drawn again
  }

  // Show the state after frame `index` (-1: before the first): forwards by changes, backwards from
  // the picture before it.
  seek(index) {
    index = Math.max(-1, Math.min(this.length - 1, index));
    if (index === this.at) return;
    if (index < this.at || index > this.at + 8) this.jump(index);
    while (this.at < index) this.apply(this.film.frames[++this.at]);
    this.settle();
  }

  // To the picture before `index`, where that is nearer than where the pool stands.
  jump(index) {
    const start = this.pictures.filter((at) => at <= index).pop();
    if (index > this.at && (start === undefined || start <= this.at + 8)) return;
    this.empty();
    if (start !== undefined) this.load(start);
  }

  load(index) {
    const picture = this.film.keys[index];
    for (const [request, table, written, padding, ended, rate] of picture.h) {
      const holder = { table: pagedkv.unpack(table), written, padding, ended: !!ended, rate };
      this.holders.set(request, holder);
      this.own(request, holder.table, 0);
    }
    for (const block of pagedkv.unpack(picture.k)) this.keep(block);
    this.at = index;
  }

  apply(frame) {
    for (const request of frame.g || []) this.drop(request);
    for (const block of pagedkv.unpack(frame.u || [])) this.forget(block);
    for (const change of frame.h || []) this.change(change);
    for (const block of pagedkv.unpack(frame.k || [])) this.keep(block);
    for (const [request, rate] of frame.w || []) this.holders.get(request).rate = rate;
    for (const holder of this.holders.values()) this.write(holder);
  }

  drop(request) {
    this.disown(request, this.holders.get(request).table);
    this.holders.delete(request);
  }

  change([request, kept, added, padding, ended]) {
    let holder = this.holders.get(request);
    if (!holder) {
      holder = { table: [], written: 0, padding: 0, ended: false, rate: 0 };
      this.holders.set(request, holder);
    }
    this.disown(request, holder.table.slice(kept));
    const tail = pagedkv.unpack(added);
    holder.table = holder.table.slice(0, kept).concat(tail);
    if (holder.ended !== !!ended || holder.padding !== (padding || 0)) {
      holder.table.forEach((block) => this.dirty.add(block));
    }
    holder.ended = !!ended;
    holder.padding = padding || 0;
    this.own(request, tail, kept);
  }

  own(request, blocks, first) {
    blocks.forEach((block, index) => {
      this.place[block] = first + index;
      this.owners[block].push(request);
      this.dirty.add(block);
    });
  }

  disown(request, blocks) {
    for (const block of blocks) {
      this.owners[block] = this.owners[block].filter((owner) => owner !== request);
      this.dirty.add(block);
    }
  }

  keep(block) {
    this.cached.add(block);
    this.dirty.add(block);
  }

  forget(block) {
    this.cached.delete(block);
    this.dirty.add(block);
  }

  // The request's next positions hold K and V now.
  write(holder) {
    if (!holder.rate) return;
    const first = holder.padding + Math.min(holder.written, holder.written + holder.rate);
    holder.written += holder.rate;
    const last = holder.padding + Math.max(holder.written, holder.written - holder.rate);
    const size = this.size;
    for (let i = Math.floor(first / size); i * size < last && i < holder.table.length; i++) {
      this.dirty.add(holder.table[i]);
    }
  }

  // [filler slots, slots written including fillers, has an owner that goes on]
  part(block) {
    const before = this.place[block] * this.size;
    let padding = 0;
    let filled = 0;
    let alive = false;
    for (const request of this.owners[block]) {
      const holder = this.holders.get(request);
      padding = Math.max(padding, this.clamp(holder.padding - before));
      filled = Math.max(filled, this.clamp(holder.padding + holder.written - before));
      alive = alive || !holder.ended;
    }
    return [padding, filled, alive];
  }

  clamp(value) {
    return Math.min(Math.max(value, 0), this.size);
  }

  // Bring the sums up to date with the blocks that changed.
  settle() {
    for (const block of this.dirty) {
      this.account(this.known.get(block), -1);
      this.known.delete(block);
      if (this.owners[block].length) {
        const seen = { part: this.part(block), owners: this.owners[block].length };
        this.known.set(block, seen);
        this.account(seen, 1);
      }
    }
  }

  account(seen, sign) {
    if (!seen) return;
    const [padding, filled, alive] = seen.part;
    this.sums.padding += sign * padding;
    if (alive) {
      this.sums.live += sign * (filled - padding);
      this.sums.unwritten += sign * (this.size - filled);
    } else {
      this.sums.finished += sign * (this.size - padding);
    }
    if (seen.owners > 1) this.shared += sign;
  }

  counters() {
    const film = this.film;
    const { live, padding, finished, unwritten } = this.sums;
    const allocated = live + padding + finished + unwritten;
    const used = this.known.size + this.cached.size;
    const cached = this.cached.size * this.size;
    const engine = film.engine * this.size;
    let running = 0;
    for (const holder of this.holders.values()) running += holder.ended ? 0 : 1;
    const rest = film.elastic ? 0 : (film.blocks - film.engine - used) * this.size;
    const watermark = Math.min(film.watermark * this.size, rest);
    const reserved = film.elastic ? allocated + cached : film.blocks * this.size;
    return {
      reserved, allocated, live, wasted: allocated - live, padding, finished, unwritten, cached,
      engine, watermark, free: rest - watermark, blocks: this.known.size, shared: this.shared,
      running,
    };
  }

  frame() {
    return this.at < 0 ? null : this.film.frames[this.at];
  }
};

// What a frame does, from the state before it: [{ key, request, blocks, … }]. Events of the film are
// those that the changes of the tables do not show; the others follow from them.
pagedkv.eventsOf = function (pool, frame) {
  const told = [];
  const add = (key, request, blocks, more) => told.push({ key, request, blocks, ...more });
  const gone = new Set(frame.g || []);
  const ended = new Set((frame.f || []).map(([request]) => request));
  const causes = new Map((frame.p || []).map(([request, by, needed, free, computed]) => [request, { by, needed, free, computed }]));
  const moves = (frame.m || []).map(([key, request, blocks]) => [key, request, pagedkv.unpack(blocks)]);
  const copies = (frame.y || []).map(([request, old, block]) => ["copied", request, [block], { old }]);
  const swapped = new Set(moves.filter(([key]) => key === "swapped").map(([, request]) => request));
  const lost = (request) => causes.has(request) || gone.has(request); // whatever it was given before
  const gained = [...copies, ...moves.filter(([key]) => key !== "swapped")].filter(([, request]) => !lost(request));
  const named = new Set(gained.flatMap(([, request, blocks]) => blocks.map((block) => request + ":" + block)));
  const replaced = new Set(gained.filter(([key]) => key === "copied" || key === "merged").map(([, request]) => request));
  for (const request of new Set([...causes.keys(), ...ended, ...gone])) {
    const holder = pool.holders.get(request);
    const blocks = holder && gone.has(request) ? holder.table : [];
    if (causes.has(request)) add(swapped.has(request) ? "swapped" : "preempted", request, blocks, causes.get(request));
    else if (gone.has(request)) add(ended.has(request) ? "finished" : "freed", request, blocks);
    else add(holder ? "ended" : "left", request, blocks);
  }
  if (frame.e) add("evicted", null, frame.e);
  for (const [key, request, blocks, more] of gained) add(key, request, blocks, more);
  for (const [request, kept, added] of frame.h || []) {
    const holder = pool.holders.get(request);
    const before = holder ? holder.table.slice(kept) : [];
    const now = pagedkv.unpack(added);
    const fresh = now.filter((block) => !before.includes(block) && !named.has(request + ":" + block));
    const left = replaced.has(request) ? [] : before.filter((block) => !now.includes(block));
    if (left.length) add("freed", request, left);
    if (fresh.length) add("allocated", request, fresh, { slots: kept + now.length });
  }
  for (const [request, reason, needed, free] of frame.a || []) add("waits", request, [], { reason, needed, free });
  return told;
};

// A film read once from its first to its last frame: counters after each, what each did, how much
// had happened until then, and its last frame that still holds something.
pagedkv.read = function (film) {
  if (film.read) return film.read;
  const pool = new pagedkv.Pool(film);
  const curve = [];
  const told = [];
  const totals = [{ preempted: 0, copied: 0, evicted: 0 }];
  film.frames.forEach((frame, index) => {
    told.push(pagedkv.eventsOf(pool, frame));
    pool.seek(index);
    pool.dirty.clear();
    curve.push(pool.counters());
    const last = totals[index];
    const counts = frame.c || {};
    totals.push(Object.fromEntries(Object.keys(last).map((name) => [name, last[name] + (counts[name] || 0)])));
  });
  const most = Math.max(...curve.map((one) => one.live));
  const useful = curve.findLastIndex((one) => one.live) + 1 || curve.length;
  const peak = curve.findLastIndex((one) => one.live === most);
  film.read = { curve, told, totals, peak, useful: useful - 1, seconds: film.frames[film.frames.length - 1].t };
  return film.read;
};
