// Draws one pool on a canvas: cells for blocks, rows for slabs, both at one scale of slots.
//
//   cells   │0 ██│0 █░│1 ██│   │      a block each, filled from the left as its slots are written
//   rows    │0 ████████░░░░░░░░│      a slab each, over as many rows as it needs
//
// Only blocks that changed are drawn again; a change of size, theme or choice draws everything.
pagedkv.COLOURS = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#7a5cc2", "#f0e442"];
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

pagedkv.Canvas = class {
  // `names(block)`: what a block may be labelled with, the longest first.
  constructor(node, pool, names) {
    this.node = node;
    this.context = node.getContext("2d", { alpha: false });
    this.pool = pool;
    this.names = names;
    this.marks = new Map();
    this.paints = new Map();
    this.chosen = null;
    this.cursor = null;
  }

  // `scale` is that of both sides; a row here has as many whole blocks as fit into it.
  layout(scale, width) {
    const film = this.pool.film;
    const ratio = (this.ratio = Math.min(window.devicePixelRatio || 1, 2));
    this.width = width;
    this.unit = width / scale.row;
    this.rowHeight = scale.height;
    this.rowSlots = pagedkv.rowOf(film, scale.row);
    this.rows = pagedkv.rowsOf(film, scale.row);
    this.drawn = Math.min(this.rows, scale.rows);
    this.hidden = this.rows - this.drawn;
    this.height = this.drawn * this.rowHeight;
    this.gap = this.rowHeight < 5 ? 0 : Math.min(this.rowHeight, this.unit * film.size) < 20 ? 1 : 2;
    this.node.width = Math.round(width * ratio);
    this.node.height = Math.round(this.height * ratio);
    this.node.style.height = this.height + "px";
    this.context.setTransform(ratio, 0, 0, ratio, 0, 0);
    this.readTheme();
    this.pool.all = true;
  }

  readTheme() {
    const style = getComputedStyle(document.documentElement);
    const read = (name) => style.getPropertyValue("--" + name).trim();
    this.theme = {
      paper: read("paper"), free: read("sheet"), rule: read("rule"), ink: read("ink"),
      soft: read("soft"), engine: read("engine"), accent: read("accent"),
      dark: style.colorScheme === "dark",
    };
    this.paints.clear();
  }

  // A colour with its mark, as a pattern. `kind` is live, held or ended, in the request's colour, or
  // padding or cached, in grey.
  paint(request, kind) {
    const turn = Math.floor(request / pagedkv.COLOURS.length);
    const colour = request % pagedkv.COLOURS.length;
    const tile = (colour + turn) % pagedkv.TILES.length;
    const name = kind === "live" ? `${colour}-${tile}` : `${kind}-${colour}`;
    if (!this.paints.has(name)) this.paints.set(name, this.tile(colour, tile, kind));
    return this.paints.get(name);
  }

  tile(colour, tile, kind) {
    const image = document.createElement("canvas");
    image.width = image.height = 8;
    const c = image.getContext("2d");
    c.fillStyle = this.theme.free;
    c.fillRect(0, 0, 8, 8);
    c.globalAlpha = { live: 1, held: this.theme.dark ? 0.42 : 0.22, ended: 0.3, padding: 0.3, cached: 0.65 }[kind];
    c.fillStyle = ["padding", "cached"].includes(kind) ? this.theme.soft : pagedkv.COLOURS[colour];
    c.fillRect(0, 0, 8, 8);
    c.globalAlpha = { live: 0.5, held: this.theme.dark ? 0.8 : 0.35 }[kind] || 0.75;
    c.strokeStyle = { live: "#fff", cached: this.theme.paper }[kind] || this.theme.soft;
    c.lineWidth = kind === "live" ? 1.6 : 1;
    c.beginPath();
    if (kind === "live") pagedkv.TILES[tile](c);
    if (kind === "held") { c.strokeStyle = pagedkv.COLOURS[colour]; pagedkv.TILES[1](c); }
    if (kind === "ended") { c.moveTo(0, 0); c.lineTo(8, 8); c.moveTo(8, 0); c.lineTo(0, 8); }
    if (kind === "cached") pagedkv.TILES[2](c);
    if (kind === "padding") { c.rect(1, 1, 1, 1); c.rect(5, 5, 1, 1); }
    c.stroke();
    return this.context.createPattern(image, "repeat");
  }

  colour(request) {
    return pagedkv.COLOURS[request % pagedkv.COLOURS.length];
  }

  // Draw what changed; everything where that is asked for.
  draw(now) {
    const pool = this.pool;
    if (pool.film.elastic) {
      if (pool.all || pool.dirty.size) this.drawGrowing();
    } else if (pool.all) {
      this.area([[0, 0, this.width, this.height]], this.theme.paper);
      for (let block = 0; block < pool.film.blocks; block++) this.drawBlock(block, now);
    } else {
      for (const block of pool.dirty) this.drawBlock(block, now);
    }
    pool.all = false;
    pool.dirty.clear();
  }

  // Marks fade after a moment; without motion they stay until the next step.
  mark(kind, blocks, now) {
    for (const block of blocks) {
      this.marks.set(block, { kind, until: now + pagedkv.MARK_MS });
      this.pool.dirty.add(block);
    }
  }

  expire(now, all) {
    for (const [block, mark] of this.marks) {
      if (all || mark.until <= now) {
        this.marks.delete(block);
        this.pool.dirty.add(block);
      }
    }
  }

  // On a whole pixel of the screen: nothing of a block remains beside it.
  px(value) {
    return Math.round(value * this.ratio) / this.ratio;
  }

  // The pieces of rows that a run of a block's slots covers: [x, y, width, height].
  pieces(block, from, to) {
    const rows = this.rowSlots;
    const base = block * this.pool.size;
    const end = base + this.pool.size;
    const found = [];
    for (let slot = base + from; slot < base + to; ) {
      const row = Math.floor(slot / rows);
      const next = Math.min(base + to, (row + 1) * rows);
      const last = Math.min(end, (row + 1) * rows);
      const x = this.px((slot - row * rows) * this.unit);
      const right = Math.min(this.px((next - row * rows) * this.unit), this.px((last - row * rows) * this.unit) - this.gap);
      const below = end > (row + 1) * rows ? 0 : this.gap; // none between the rows of one block
      if (row < this.drawn && right > x) found.push([x, row * this.rowHeight, right - x, this.rowHeight - below]);
      slot = next;
    }
    return found;
  }

  drawBlock(block) {
    const pool = this.pool;
    const whole = this.pieces(block, 0, pool.size);
    if (!whole.length) return;
    const owners = pool.owners[block];
    const owner = owners.length ? owners[0] : null;
    const faded = this.chosen !== null && !owners.includes(this.chosen);
    if (owner === null) {
      const kept = pool.cached.has(block);
      const engine = block < pool.film.engine;
      this.area(whole, kept ? this.paint(0, "cached") : engine ? this.theme.engine : this.theme.free);
    } else {
      const [padding, filled, alive] = pool.part(block);
      this.area(whole, this.theme.paper);
      this.area(whole, this.paint(owner, alive ? "held" : "ended"), faded);
      if (alive && filled > padding) this.area(this.pieces(block, padding, filled), this.paint(owner, "live"), faded);
      if (padding) this.area(this.pieces(block, 0, padding), this.paint(owner, "padding"), faded);
    }
    this.overlay(block, whole, owners, faded);
  }

  area(pieces, paint, faded) {
    this.context.fillStyle = paint;
    if (faded) this.context.globalAlpha = 0.35;
    for (const piece of pieces) this.context.fillRect(...piece);
    this.context.globalAlpha = 1;
  }

  overlay(block, whole, owners, faded) {
    const [x, y, width, high] = whole[0];
    if (owners.length > 1) this.badge(owners.length, x + width, y + high, width);
    if (this.chosen !== null && owners.includes(this.chosen)) this.outline(whole, this.theme.ink, 2);
    const mark = this.marks.get(block);
    if (mark) this.drawMark(mark.kind, whole);
    if (this.cursor === block) {
      this.outline(whole, this.theme.paper, 5);
      this.outline(whole, this.theme.ink, 3);
    }
    if ((!faded || !owners.length) && high >= 14 && width >= 10) this.label(this.names(block, width), whole[0], owners.length ? this.theme.ink : this.theme.soft);
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
    const left = x + Math.max(1, Math.min(4, (width - wide(text)) / 2));
    c.strokeText(text, left, y + 2, width - 2);
    c.fillStyle = colour;
    c.fillText(text, left, y + 2, width - 2);
  }

  // How many requests own the block, in its last corner; a spot where there is no room for a number.
  badge(count, right, bottom, width) {
    const c = this.context;
    const small = width < 16 || this.rowHeight < 14;
    const [wide, high] = small ? [Math.min(4, width / 2), Math.min(4, this.rowHeight / 2)] : [16, 11];
    c.fillStyle = this.theme.ink;
    c.fillRect(right - wide, bottom - high, wide, high);
    if (small) return;
    c.font = "700 9px system-ui, sans-serif";
    c.textBaseline = "middle";
    c.textAlign = "center";
    c.fillStyle = this.theme.paper;
    c.fillText("×" + count, right - 8, bottom - 5);
  }

  drawMark(kind, whole) {
    const c = this.context;
    if (kind === "allocated") return this.outline(whole, this.theme.ink, 1.5);
    const [x, y, wide, high] = whole[0];
    const width = Math.min(wide, high * 1.6);
    c.strokeStyle = this.theme.ink;
    c.lineWidth = this.rowHeight < 10 ? 1 : 2;
    c.beginPath();
    if (kind === "copied") {
      c.moveTo(x + width / 2, y + 1); c.lineTo(x + width - 1, y + high / 2);
      c.lineTo(x + width / 2, y + high - 1); c.lineTo(x + 1, y + high / 2); c.closePath();
    } else if (kind === "freed") {
      c.moveTo(x + 2, y + high / 2); c.lineTo(x + width - 2, y + high / 2);
    } else {
      c.moveTo(x + 2, y + 2); c.lineTo(x + width - 2, y + high - 2);
      c.moveTo(x + width - 2, y + 2); c.lineTo(x + 2, y + high - 2);
    }
    c.stroke();
  }

  // A growing cache has no places: each request is drawn as one piece, one below the other.
  drawGrowing() {
    this.area([[0, 0, this.width, this.height]], this.theme.paper);
    let row = 0;
    for (const [request, holder] of this.pool.holders) {
      const put = (from, to, paint) => {
        for (let slot = from; slot < to; ) {
          const at = Math.floor(slot / this.rowSlots) * this.rowSlots;
          const next = Math.min(to, at + this.rowSlots);
          const x = this.px((slot - at) * this.unit);
          const y = (row + at / this.rowSlots) * this.rowHeight;
          this.area([[x, y, this.px((next - at) * this.unit) - x, this.rowHeight - this.gap]], paint);
          slot = next;
        }
      };
      put(0, holder.table.length, this.paint(request, holder.ended ? "ended" : "held"));
      if (!holder.ended) put(holder.padding, holder.padding + holder.written, this.paint(request, "live"));
      put(0, holder.padding, this.paint(request, "padding"));
      if (this.rowHeight >= 13) this.label([String(request)], [2, row * this.rowHeight, 20], this.theme.ink);
      row += Math.max(1, Math.ceil(holder.table.length / this.rowSlots));
    }
  }

  // The block under a point of the canvas, or null.
  blockAt(x, y) {
    const film = this.pool.film;
    const row = Math.floor(y / this.rowHeight);
    const column = Math.floor(x / this.unit);
    if (film.elastic || row < 0 || row >= this.drawn || column < 0 || column >= this.rowSlots) return null;
    const block = Math.floor((row * this.rowSlots + column) / film.size);
    return block < film.blocks ? block : null;
  }

  requestAt(x, y) {
    if (!this.pool.film.elastic) {
      const block = this.blockAt(x, y);
      const owners = block === null ? [] : this.pool.owners[block];
      return owners.length ? owners[0] : null;
    }
    let row = Math.floor(y / this.rowHeight);
    for (const [request, holder] of this.pool.holders) {
      row -= Math.max(1, Math.ceil(holder.table.length / this.rowSlots));
      if (row < 0) return request;
    }
    return null;
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
  const sizes = films.filter((film) => !film.slab).map((film) => film.size);
  const cell = Math.max(0, ...sizes);
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
