// The state of one pool after one frame of the film that film.py made. No drawing here.
//
//   owners[block]  the requests that hold it     holders[request]  table, written, padding, ended
//   part(block)    [fillers, filled, alive]      sums              slots in each state, kept as
//                                                                  blocks change
pagedkv.unpack = function (packed) {
  const blocks = [];
  for (const entry of packed || []) {
    if (entry >= 0) blocks.push(entry);
    else for (let next = blocks.at(-1) + 1; next <= -entry; next++) blocks.push(next);
  }
  return blocks;
};

pagedkv.Pool = class {
  constructor(film) {
    this.film = film;
    this.size = film.size;
    this.empty();
  }

  // Nothing has run: the pool is reserved and free.
  empty() {
    this.at = -1;
    this.holders = new Map();
    this.owners = Array.from({ length: this.film.blocks }, () => []);
    this.place = new Int32Array(this.film.blocks);
    this.cached = new Set();
    this.known = new Map(); // what each held block adds to the sums
    this.sums = { live: 0, padding: 0, finished: 0, unwritten: 0, shared: 0 };
    this.dirty = new Set();
    this.all = true; // everything must be drawn again
  }

  // To the state after frame `index` (-1: before the first); backwards by way of the beginning.
  seek(index) {
    if (index < this.at) this.empty();
    while (this.at < index) this.apply(this.film.frames[++this.at]);
    this.settle();
  }

  apply(frame) {
    for (const request of frame.g || []) {
      this.disown(request, this.holders.get(request).table);
      this.holders.delete(request);
    }
    for (const change of frame.h || []) this.change(change);
    for (const block of pagedkv.unpack(frame.u)) this.cached.delete(block);
    for (const block of pagedkv.unpack(frame.k)) this.cached.add(block);
    this.touch(pagedkv.unpack(frame.u));
    this.touch(pagedkv.unpack(frame.k));
    for (const [request, rate] of frame.w || []) this.holders.get(request).rate = rate;
    for (const holder of this.holders.values()) this.write(holder);
  }

  change([request, kept, added, padding = 0, ended = 0]) {
    const holder = this.holders.get(request) || { table: [], written: 0, rate: 0 };
    this.holders.set(request, holder);
    this.disown(request, holder.table.slice(kept));
    const tail = pagedkv.unpack(added);
    holder.table = [...holder.table.slice(0, kept), ...tail];
    tail.forEach((block, index) => {
      this.place[block] = kept + index;
      this.owners[block].push(request);
    });
    this.touch(holder.ended !== !!ended || holder.padding !== padding ? holder.table : tail);
    holder.ended = !!ended;
    holder.padding = padding;
  }

  disown(request, blocks) {
    for (const block of blocks) this.owners[block] = this.owners[block].filter((owner) => owner !== request);
    this.touch(blocks);
  }

  touch(blocks) {
    for (const block of blocks) this.dirty.add(block);
  }

  // The request's next positions hold K and V now.
  write(holder) {
    const { table, padding, written, rate } = holder;
    if (!rate) return;
    holder.written += rate;
    const first = Math.floor((padding + Math.min(written, holder.written)) / this.size);
    const last = Math.ceil((padding + Math.max(written, holder.written)) / this.size);
    this.touch(table.slice(first, last));
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
    const add = (counts, sign) => {
      for (const name in counts) this.sums[name] += sign * counts[name];
    };
    for (const block of this.dirty) {
      add(this.known.get(block), -1);
      this.known.delete(block);
      if (!this.owners[block].length) continue;
      const [padding, filled, alive] = this.part(block);
      const counts = { padding, shared: Number(this.owners[block].length > 1) };
      if (alive) Object.assign(counts, { live: filled - padding, unwritten: this.size - filled });
      else counts.finished = this.size - padding;
      this.known.set(block, counts);
      add(counts, 1);
    }
  }

  // Slots in each state, and numbers of shared blocks and running requests.
  counters() {
    const { blocks, elastic, engine: reserved, watermark: held } = this.film;
    const { live, padding, finished, unwritten } = this.sums;
    const allocated = live + padding + finished + unwritten;
    const cached = this.cached.size * this.size;
    const engine = reserved * this.size;
    const rest = elastic ? 0 : blocks * this.size - engine - cached - this.known.size * this.size;
    const watermark = Math.min(held * this.size, rest);
    return {
      ...this.sums, reserved: elastic ? allocated + cached : blocks * this.size, allocated, wasted: allocated - live,
      cached, engine, watermark, free: rest - watermark,
      running: [...this.holders.values()].filter((holder) => !holder.ended).length,
    };
  }
};

// What a frame does, from the state before it: [{ key, request, blocks, … }]. Events of the film are
// those that the changes of the tables do not show; the others follow from them.
pagedkv.eventsOf = function (pool, frame) {
  const told = [];
  const add = (key, request, blocks, more) => told.push({ key, request, blocks, ...more });
  const gone = new Set(frame.g);
  const ended = new Set((frame.f || []).map(([request]) => request));
  const causes = new Map((frame.p || []).map(([request, by, needed, free, computed]) => [request, { by, needed, free, computed }]));
  const moves = (frame.m || []).map(([key, request, blocks]) => [key, request, pagedkv.unpack(blocks)]);
  const copies = (frame.y || []).map(([request, old, block]) => ["copied", request, [block], { old }]);
  const swapped = new Set(moves.filter(([key]) => key === "swapped").map(([, request]) => request));
  const lost = (request) => causes.has(request) || gone.has(request); // whatever it was given before
  const gained = [...copies, ...moves].filter(([key, request]) => key !== "swapped" && !lost(request));
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
  for (const event of gained) add(...event);
  for (const [request, kept, added] of frame.h || []) {
    const before = pool.holders.get(request)?.table.slice(kept) || [];
    const now = pagedkv.unpack(added);
    const fresh = now.filter((block) => !before.includes(block) && !named.has(request + ":" + block));
    const left = replaced.has(request) ? [] : before.filter((block) => !now.includes(block));
    if (left.length) add("freed", request, left);
    if (fresh.length) add("allocated", request, fresh, { slots: kept + now.length });
  }
  for (const [request, reason, needed, free] of frame.a || []) add("waits", request, [], { reason, needed, free });
  return told;
};

// A film read once from its first to its last frame: what each frame did, the counters after it, how
// much had happened before it, the fullest frame, and the last that still holds something.
pagedkv.read = function (film) {
  if (film.read) return film.read;
  const pool = new pagedkv.Pool(film);
  const [curve, told, totals] = [[], [], [{ preempted: 0, copied: 0, evicted: 0 }]];
  film.frames.forEach((frame, index) => {
    told.push(pagedkv.eventsOf(pool, frame));
    pool.seek(index);
    pool.dirty.clear();
    curve.push(pool.counters());
    totals.push(Object.fromEntries(Object.entries(totals[index]).map(([name, n]) => [name, n + (frame.c?.[name] || 0)])));
  });
  const most = Math.max(...curve.map((one) => one.live));
  const peak = curve.findLastIndex((one) => one.live === most);
  const useful = most ? curve.findLastIndex((one) => one.live) : curve.length - 1;
  return (film.read = { curve, told, totals, peak, useful, seconds: film.frames.at(-1).t, took: film.took ?? film.frames.at(-1).t });
};
