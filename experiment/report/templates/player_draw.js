// Draws one pool on a canvas: cells for blocks, rows for slabs, both at one scale of slots.
//
//   cells   │0 ██│0 █░│1 ██│   │      a block each, filled from the left as its slots are written
//   rows    │0 ████████░░░░░░░░│      a slab each, over as many rows as it needs
//
// Only blocks that changed are drawn again; a change of size, theme or choice draws everything.
pagedkv.COLOURS = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#7a5cc2", "#f0e442"];
pagedkv.colour = (request) => pagedkv.COLOURS[request % pagedkv.COLOURS.length];
pagedkv.MARK_MS = 400;
pagedkv.ROW = { least: 3, good: 8, most: 40 }; // pixels

// Eight by eight pixels of a mark over a colour, so that requests differ by more than colour.
pagedkv.TILES = [
  () => {},
  (c) => { c.moveTo(-2, 10); c.lineTo(10, -2); c.moveTo(-2, 2); c.lineTo(2, -2); c.moveTo(6, 10); c.lineTo(10, 6); },
  (c) => { c.moveTo(4, 0); c.lineTo(4, 8); },
  (c) => { c.moveTo(0, 4); c.lineTo(8, 4); },
  (c) => { c.moveTo(3, 4); c.arc(4, 4, 1.2, 0, 7); },
];
pagedkv.CROSS = (c) => { c.moveTo(0, 0); c.lineTo(8, 8); c.moveTo(8, 0); c.lineTo(0, 8); };
pagedkv.DOTS = (c) => { c.rect(1, 1, 1, 1); c.rect(5, 5, 1, 1); };

// What a block shows for a moment, by the sample of the legend: lines in a box of `w` by `h`.
pagedkv.MARKS = {
  copied: (c, w, h) => { c.moveTo(w / 2, 1); c.lineTo(w - 1, h / 2); c.lineTo(w / 2, h - 1); c.lineTo(1, h / 2); c.closePath(); },
  freed: (c, w, h) => { c.moveTo(2, h / 2); c.lineTo(w - 2, h / 2); },
  evicted: (c, w, h) => { c.moveTo(2, 2); c.lineTo(w - 2, h - 2); c.moveTo(w - 2, 2); c.lineTo(2, h - 2); },
};

pagedkv.Canvas = class {
  // `names(block, width)`: what a block may be labelled with, the longest first.
  constructor(node, pool, names) {
    this.node = node;
    this.context = node.getContext("2d", { alpha: false });
    this.pool = pool;
    this.names = names;
    this.marks = new Map();
    this.chosen = null; // a request
    this.cursor = null; // a block
  }

  // `scale` is that of both sides; a row here has as many whole blocks as fit into it.
  layout(scale, width) {
    const film = this.pool.film;
    const ratio = (this.ratio = Math.min(window.devicePixelRatio || 1, 2));
    this.width = width;
    this.unit = width / scale.row;
    this.rowHeight = scale.height;
    this.rowSlots = pagedkv.rowOf(film, scale.row);
    const rows = pagedkv.rowsOf(film, scale.row);
    this.drawn = Math.min(rows, scale.rows);
    this.hidden = rows - this.drawn;
    this.height = this.drawn * this.rowHeight;
    this.gap = this.rowHeight < 5 ? 0 : Math.min(this.rowHeight, this.unit * film.size) < 20 ? 1 : 2;
    this.node.width = Math.round(width * ratio);
    this.node.height = Math.round(this.height * ratio);
    this.node.style.height = this.height + "px";
    this.context.setTransform(ratio, 0, 0, ratio, 0, 0);
    const style = getComputedStyle(document.documentElement);
    this.theme = { dark: style.colorScheme === "dark" };
    for (const name of ["paper", "sheet", "ink", "soft", "engine"]) this.theme[name] = style.getPropertyValue("--" + name).trim();
    this.paints = new Map();
    this.pool.all = true;
  }

  // A colour with its mark, as a pattern. `kind` is live, held or ended, in the request's colour, or
  // padding or cached, in grey.
  paint(request, kind) {
    const colour = request % pagedkv.COLOURS.length;
    const tile = (colour + Math.floor(request / pagedkv.COLOURS.length)) % pagedkv.TILES.length;
    const name = kind === "live" ? `${colour}-${tile}` : `${kind}-${colour}`;
    if (!this.paints.has(name)) this.paints.set(name, this.tile(pagedkv.COLOURS[colour], tile, kind));
    return this.paints.get(name);
  }

  tile(colour, tile, kind) {
    const { dark, sheet, paper, soft } = this.theme;
    const { TILES, CROSS, DOTS } = pagedkv;
    const [ground, opacity, stroke, strength, mark] = {
      live: [colour, 1, "#fff", 0.5, TILES[tile]],
      held: [colour, dark ? 0.42 : 0.22, colour, dark ? 0.8 : 0.35, TILES[1]],
      ended: [colour, 0.3, soft, 0.75, CROSS],
      padding: [soft, 0.3, soft, 0.75, DOTS],
      cached: [soft, 0.65, paper, 0.75, TILES[2]],
    }[kind];
    const image = document.createElement("canvas");
    image.width = image.height = 8;
    const c = image.getContext("2d");
    for (const [paint, alpha] of [[sheet, 1], [ground, opacity]]) {
      c.globalAlpha = alpha;
      c.fillStyle = paint;
      c.fillRect(0, 0, 8, 8);
    }
    c.globalAlpha = strength;
    c.strokeStyle = stroke;
    c.lineWidth = kind === "live" ? 1.6 : 1;
    mark(c);
    c.stroke();
    return this.context.createPattern(image, "repeat");
  }

  // Draw what changed; everything where that is asked for.
  draw() {
    const { pool } = this;
    if (pool.all) this.area([[0, 0, this.width, this.height]], this.theme.paper);
    if (pool.film.elastic && (pool.all || pool.dirty.size)) this.drawGrowing();
    else for (const block of pool.all ? pool.owners.keys() : pool.dirty) this.drawBlock(block);
    pool.all = false;
    pool.dirty.clear();
  }

  // Marks fade after a moment; without motion they stay until the next step.
  mark(kind, blocks, now) {
    for (const block of blocks) this.marks.set(block, { kind, until: now + pagedkv.MARK_MS });
    this.pool.touch(blocks);
  }

  expire(now) {
    for (const [block, mark] of this.marks) {
      if (mark.until > now) continue;
      this.marks.delete(block);
      this.pool.dirty.add(block);
    }
  }

  // On a whole pixel of the screen: nothing of a block remains beside it.
  px(value) {
    return Math.round(value * this.ratio) / this.ratio;
  }

  // The part of a row that the slots `from` to `to` of a piece of memory take, which lies from slot
  // `base` to slot `end` of the pool. All its slots in a row share the room before the gap.
  span(row, base, end, from, to) {
    const start = row * this.rowSlots;
    const first = Math.max(base, start);
    const last = Math.min(end, start + this.rowSlots);
    const left = this.px((first - start) * this.unit);
    const room = this.px((last - start) * this.unit) - left;
    const wide = room > this.gap ? room - this.gap : room;
    const at = (slot) => left + (wide * (Math.min(Math.max(slot, first), last) - first)) / (last - first);
    return [at(base + from), at(base + to)];
  }

  // Its rectangles: [x, y, width, height], none of them in a hidden row.
  spans(base, end, from, to) {
    const found = [];
    for (let row = Math.floor((base + from) / this.rowSlots); row * this.rowSlots < base + to && row < this.drawn; row++) {
      const [x, right] = this.span(row, base, end, from, to).map((at) => this.px(at));
      const below = end > (row + 1) * this.rowSlots ? 0 : this.gap; // none between the rows of one piece
      if (right > x) found.push([x, row * this.rowHeight, right - x, this.rowHeight - below]);
    }
    return found;
  }

  pieces(block, from, to) {
    const base = block * this.pool.size;
    return this.spans(base, base + this.pool.size, from, to);
  }

  // The middle of a slot: [x, y], or null in a hidden row.
  middle(block, slot) {
    const base = block * this.pool.size;
    const row = Math.floor((base + slot) / this.rowSlots);
    const [left, right] = this.span(row, base, base + this.pool.size, slot, slot + 1);
    return row < this.drawn ? [(left + right) / 2, (row + 0.72) * this.rowHeight] : null;
  }

  drawBlock(block) {
    const { pool, theme } = this;
    const whole = this.pieces(block, 0, pool.size);
    if (!whole.length) return;
    const owners = pool.owners[block];
    const faded = this.chosen !== null && owners.length > 0 && !owners.includes(this.chosen);
    if (owners.length) {
      const [padding, filled, alive] = pool.part(block);
      const fill = (from, to, kind) => this.area(this.pieces(block, from, to), this.paint(owners[0], kind), faded);
      this.area(whole, theme.paper);
      fill(0, pool.size, alive ? "held" : "ended");
      if (alive) fill(padding, filled, "live");
      fill(0, padding, "padding");
    } else {
      this.area(whole, pool.cached.has(block) ? this.paint(0, "cached") : block < pool.film.engine ? theme.engine : theme.sheet);
    }
    const [x, y, width, high] = whole[0];
    const spot = Math.min(4, width / 2, high / 2);
    if (owners.length > 1) this.area([[x + width - spot, y + high - spot, spot, spot]], theme.ink);
    if (owners.includes(this.chosen)) this.outline(whole, theme.ink, 2);
    if (this.marks.has(block)) this.drawMark(this.marks.get(block).kind, whole);
    if (this.cursor === block) {
      this.outline(whole, theme.paper, 5);
      this.outline(whole, theme.ink, 3);
    }
    if (!faded && high >= 14 && width >= 10) this.label(this.names(block, width), whole[0], owners.length ? theme.ink : theme.soft);
  }

  area(pieces, paint, faded) {
    this.context.fillStyle = paint;
    if (faded) this.context.globalAlpha = 0.35;
    for (const piece of pieces) this.context.fillRect(...piece);
    this.context.globalAlpha = 1;
  }

  // One line around all pieces of a block, inside of them.
  outline(whole, colour, width) {
    const c = this.context;
    c.strokeStyle = colour;
    c.lineWidth = this.rowHeight < 10 ? 1 : width;
    const half = c.lineWidth / 2;
    const last = whole.length - 1;
    const corners = whole.map(([x, y, w, h], i) => [x + half, x + w - half, i ? y : y + half, i < last ? y + h : y + h - half]);
    c.beginPath();
    for (const [, right, top, bottom] of corners) { c.lineTo(right, top); c.lineTo(right, bottom); }
    for (const [left, , top, bottom] of corners.reverse()) { c.lineTo(left, bottom); c.lineTo(left, top); }
    c.closePath();
    c.stroke();
  }

  // The first of the texts that fits; the last may be made a little narrower.
  label(texts, [x, y, width], colour) {
    const c = this.context;
    const wide = (text) => c.measureText(text).width;
    c.font = "600 " + (width < 24 ? 9 : 11) + "px system-ui, sans-serif";
    const text = texts.find((one, i) => wide(one) * (i < texts.length - 1 ? 1 : 0.7) <= width - 2);
    if (text === undefined) return;
    c.textBaseline = "top";
    c.textAlign = "left";
    c.lineWidth = 2;
    c.lineJoin = "round";
    c.strokeStyle = this.theme.paper;
    c.fillStyle = colour;
    const left = x + Math.max(1, Math.min(4, (width - wide(text)) / 2));
    c.strokeText(text, left, y + 2, width - 2);
    c.fillText(text, left, y + 2, width - 2);
  }

  drawMark(kind, whole) {
    const c = this.context;
    if (kind === "new") return this.outline(whole, this.theme.ink, 1.5);
    const [x, y, width, high] = whole[0];
    c.strokeStyle = this.theme.ink;
    c.lineWidth = this.rowHeight < 10 ? 1 : 2;
    c.save();
    c.translate(x, y);
    c.beginPath();
    pagedkv.MARKS[kind](c, Math.min(width, high * 1.6), high);
    c.stroke();
    c.restore();
  }

  // Rows of a request in a growing cache, which has no places: one piece each, one below the other.
  rowsOf(holder) {
    return Math.max(1, Math.ceil(holder.table.length / this.rowSlots));
  }

  drawGrowing() {
    let row = 0;
    this.area([[0, 0, this.width, this.height]], this.theme.paper);
    for (const [request, holder] of this.pool.holders) {
      const { table, padding, written, ended } = holder;
      const base = row * this.rowSlots;
      const fill = (from, to, kind) => this.area(this.spans(base, base + table.length, from, to), this.paint(request, kind));
      fill(0, table.length, ended ? "ended" : "held");
      if (!ended) fill(padding, padding + written, "live");
      fill(0, padding, "padding");
      if (this.rowHeight >= 13) this.label([String(request)], [2, row * this.rowHeight, 20], this.theme.ink);
      row += this.rowsOf(holder);
    }
  }

  // What is under a point of the canvas: { request, block }, null where nothing is.
  under(x, y) {
    const { film, owners, holders } = this.pool;
    const row = Math.floor(y / this.rowHeight);
    const column = Math.floor(x / this.unit);
    if (film.elastic) {
      let below = 0;
      const found = [...holders].find(([, holder]) => row < (below += this.rowsOf(holder)));
      return { request: found ? found[0] : null, block: null };
    }
    const block = Math.floor((row * this.rowSlots + column) / film.size);
    const inside = row >= 0 && row < this.drawn && column >= 0 && column < this.rowSlots && block < film.blocks;
    return inside ? { request: owners[block][0] ?? null, block } : { request: null, block: null };
  }
};

// Slots in a row of a side, of `row` at the most: whole blocks, or a whole part of one.
pagedkv.rowOf = function (film, row) {
  if (film.slab && (film.elastic || row < film.size)) return row;
  return Math.max(1, Math.floor(row / film.size)) * film.size;
};

pagedkv.rowsOf = function (film, row) {
  return Math.ceil((film.blocks * film.size) / pagedkv.rowOf(film, row));
};

// One scale for both sides: a slab is a row where that fits into `most` pixels, several of them where
// they are too many, a part of one where its blocks would be too narrow. Without slabs a row has so
// many blocks that they are about as wide as high.
pagedkv.scale = function (films, width, most) {
  const cell = Math.max(0, ...films.filter((film) => !film.slab).map((film) => film.size));
  const slab = films.find((film) => film.slab && !film.elastic);
  const whole = (slots) => (cell ? Math.ceil(slots / cell) * cell : slots);
  const rows = (row) => Math.max(...films.map((film) => pagedkv.rowsOf(film, row)));
  const wide = (row) => (width / row) * (cell || slab.size);
  const high = (row) => rows(row) * Math.min(pagedkv.ROW.most, Math.max(pagedkv.ROW.good, wide(row) * 0.85));
  let row = slab ? whole(slab.size) : cell ? 8 * cell : Math.min(films[0].blocks, 512);
  if (cell) while (wide(row) < 5 && row > 8 * cell) row = whole(row / 2);
  if (cell || slab) while (high(row) > most && wide(2 * row) >= 4) row *= 2;
  const height = Math.max(pagedkv.ROW.least, Math.min(pagedkv.ROW.most, Math.floor(most / rows(row))));
  return { row, height, rows: Math.max(1, Math.floor((2 * most) / height)) };
};
