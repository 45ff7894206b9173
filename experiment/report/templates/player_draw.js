// Draws one pool on a canvas: cells for blocks, rows for slabs, both at one scale of slots.
//
//   cells   │0 ██│0 █░│1 ██│   │      a block each, filled from the left as its slots are written
//   rows    │0 ████████░░░░░░░░│      a slab each, over as many rows as it needs
//
// Only blocks that changed are drawn again; a change of size, theme or choice draws everything.
pagedkv.COLOURS = ["#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#f0e442"];
pagedkv.MOST_HEIGHT = 560;
pagedkv.MARK_MS = 700;

// Eight by eight pixels of a mark over a colour, so that requests differ by more than colour.
pagedkv.TILES = [
  () => {},
  (c) => { c.moveTo(-2, 10); c.lineTo(10, -2); c.moveTo(-2, 2); c.lineTo(2, -2); c.moveTo(6, 10); c.lineTo(10, 6); },
  (c) => { c.moveTo(4, 0); c.lineTo(4, 8); },
  (c) => { c.moveTo(0, 4); c.lineTo(8, 4); },
  (c) => { c.moveTo(3, 4); c.arc(4, 4, 1.2, 0, 7); },
];

pagedkv.Canvas = class {
  // `scale`: slots in a row, and in a cell; the same for both sides.
  constructor(node, pool, scale) {
    this.node = node;
    this.context = node.getContext("2d", { alpha: false });
    this.pool = pool;
    this.rowSlots = scale.rowSlots;
    this.cellSlots = scale.cellSlots;
    this.marks = new Map();
    this.paints = new Map();
    this.chosen = null;
    this.cursor = null;
    this.layout();
  }

  layout() {
    const width = Math.max(160, Math.floor(this.node.parentNode.clientWidth));
    const ratio = Math.min(window.devicePixelRatio || 1, 2);
    this.rowHeight = pagedkv.rowHeight((width / this.rowSlots) * this.cellSlots);
    this.unit = width / this.rowSlots;
    this.rows = this.countRows();
    const most = Math.max(1, Math.floor(pagedkv.MOST_HEIGHT / this.rowHeight));
    this.hidden = Math.max(0, this.rows - most);
    this.drawn = this.rows - this.hidden;
    this.width = width;
    this.height = Math.max(this.rowHeight, Math.ceil(this.drawn * this.rowHeight));
    this.gap = this.rowHeight >= 12 ? 2 : 1;
    this.node.width = Math.round(width * ratio);
    this.node.height = Math.round(this.height * ratio);
    this.node.style.height = this.height + "px";
    this.context.setTransform(ratio, 0, 0, ratio, 0, 0);
    this.readTheme();
    this.pool.all = true;
  }

  countRows() {
    const film = this.pool.film;
    if (!film.slab) return Math.ceil((film.blocks * film.size) / this.rowSlots);
    if (!film.elastic) return film.blocks * this.rowsOf(film.size);
    return this.rowsOf(film.blocks);
  }

  rowsOf(slots) {
    return Math.max(1, Math.ceil(slots / this.rowSlots));
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
    c.globalAlpha = { live: 1, held: 0.22, ended: 0.3, padding: 0.3, cached: 0.65 }[kind];
    c.fillStyle = ["padding", "cached"].includes(kind) ? this.theme.soft : pagedkv.COLOURS[colour];
    c.fillRect(0, 0, 8, 8);
    c.globalAlpha = { live: 0.5, held: 0.35 }[kind] || 0.75;
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
      this.fill(0, 0, this.width, this.height, this.theme.paper);
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

  // The pieces of a row that a run of slots covers: [x, y, width].
  pieces(block, from, to) {
    const film = this.pool.film;
    const rows = this.rowSlots;
    const base = film.slab ? block * this.rowsOf(film.size) * rows : block * film.size;
    const found = [];
    for (let slot = from; slot < to; ) {
      const row = Math.floor((base + slot) / rows);
      const column = (base + slot) % rows;
      const count = Math.min(to - slot, rows - column);
      if (row < this.drawn) {
        found.push([column * this.unit, row * this.rowHeight, count * this.unit]);
      }
      slot += count;
    }
    return found;
  }

  drawBlock(block) {
    const pool = this.pool;
    const size = pool.size;
    const whole = this.pieces(block, 0, size);
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
      this.area(whole, this.theme.paper, 0);
      this.area(whole, this.paint(owner, alive ? "held" : "ended"), undefined, faded);
      if (alive && filled > padding) {
        this.area(this.pieces(block, padding, filled), this.paint(owner, "live"), undefined, faded);
      }
      if (padding) this.area(this.pieces(block, 0, padding), this.paint(owner, "padding"), undefined, faded);
    }
    this.overlay(block, whole, owners, faded);
  }

  area(pieces, paint, gap, faded) {
    const c = this.context;
    const trim = gap === undefined ? this.gap : gap;
    c.fillStyle = paint;
    if (faded) c.globalAlpha = 0.35;
    for (const [x, y, width] of pieces) {
      c.fillRect(x, y, Math.max(width - (width > 3 * trim ? trim : 0), 0.5), this.rowHeight - (trim && this.gapBelow(y)));
    }
    if (faded) c.globalAlpha = 1;
  }

  // The gap below a row: none between the rows of one slab.
  gapBelow(y) {
    const film = this.pool.film;
    const rows = film.slab && !film.elastic ? this.rowsOf(film.size) : 1;
    return (Math.round(y / this.rowHeight) + 1) % rows ? 0 : this.gap;
  }

  fill(x, y, width, height, paint) {
    this.context.fillStyle = paint;
    this.context.fillRect(x, y, width, height);
  }

  overlay(block, whole, owners, faded) {
    const [x, y, width] = whole[0];
    const high = this.rowHeight - this.gap;
    if (owners.length && !faded && width >= 18 && high >= 13) this.label(String(owners[0]), x + 4, y + high / 2);
    if (owners.length > 1) this.badge(owners.length, x + width - this.gap, y, width);
    if (this.chosen !== null && owners.includes(this.chosen)) this.frame(whole, this.theme.ink, 2);
    const mark = this.marks.get(block);
    if (mark) this.drawMark(mark.kind, whole);
    if (this.cursor === block) this.frame(whole, this.theme.accent, 3);
  }

  frame(whole, colour, width) {
    const c = this.context;
    c.strokeStyle = colour;
    c.lineWidth = this.rowHeight < 10 ? 1 : width;
    const inset = c.lineWidth / 2;
    for (const [x, y, wide] of whole) {
      c.strokeRect(x + inset, y + inset, Math.max(wide - this.gap - 2 * inset, 1), Math.max(this.rowHeight - this.gap - 2 * inset, 1));
    }
  }

  label(text, x, y) {
    const c = this.context;
    c.font = "600 11px system-ui, sans-serif";
    c.textBaseline = "middle";
    c.textAlign = "left";
    c.lineWidth = 3;
    c.lineJoin = "round";
    c.strokeStyle = this.theme.paper;
    c.strokeText(text, x, y);
    c.fillStyle = this.theme.ink;
    c.fillText(text, x, y);
  }

  // How many requests own the block; a corner where there is no room for a number.
  badge(count, right, top, width) {
    const c = this.context;
    if (width < 16 || this.rowHeight < 14) {
      const side = Math.min(4, width / 2);
      this.fill(right - side, top, side, side, this.theme.ink);
      return;
    }
    const text = "×" + count;
    c.font = "700 9px system-ui, sans-serif";
    c.textBaseline = "middle";
    c.textAlign = "center";
    this.fill(right - 16, top, 16, 11, this.theme.ink);
    c.fillStyle = this.theme.paper;
    c.fillText(text, right - 8, top + 6);
  }

  drawMark(kind, whole) {
    const c = this.context;
    const high = this.rowHeight - this.gap;
    if (kind === "allocated") return this.frame(whole, this.theme.ink, 1.5);
    const [x, y, wide] = whole[0];
    const width = Math.min(wide - this.gap, high * 1.6);
    c.strokeStyle = c.fillStyle = this.theme.ink;
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
    this.fill(0, 0, this.width, this.height, this.theme.paper);
    let row = 0;
    for (const [request, holder] of this.pool.holders) {
      const rows = this.rowsOf(holder.table.length);
      const put = (from, to, paint) => {
        for (let slot = from; slot < to; ) {
          const at = Math.floor(slot / this.rowSlots);
          const count = Math.min(to - slot, this.rowSlots - (slot % this.rowSlots));
          const x = (slot % this.rowSlots) * this.unit;
          this.area([[x, (row + at) * this.rowHeight, count * this.unit]], paint);
          slot += count;
        }
      };
      put(0, holder.table.length, this.paint(request, holder.ended ? "ended" : "held"));
      if (!holder.ended) put(holder.padding, holder.padding + holder.written, this.paint(request, "live"));
      put(0, holder.padding, this.paint(request, "padding"));
      if (this.rowHeight >= 13) this.label(String(request), 4, row * this.rowHeight + this.rowHeight / 2 - 1);
      row += rows;
    }
  }

  // The block under a point of the canvas, or null.
  blockAt(x, y) {
    const film = this.pool.film;
    const row = Math.floor(y / this.rowHeight);
    if (film.elastic || row < 0 || row >= this.drawn || x < 0 || x >= this.width) return null;
    const slot = row * this.rowSlots + Math.floor(x / this.unit);
    const block = film.slab ? Math.floor(row / this.rowsOf(film.size)) : Math.floor(slot / film.size);
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
      row -= this.rowsOf(holder.table.length);
      if (row < 0) return request;
    }
    return null;
  }
};

// How high a row is: cells are a little wider than high, yet never too flat to see.
pagedkv.rowHeight = function (cell) {
  return Math.max(5, Math.min(28, Math.round(cell * 0.85)));
};

// One scale for both sides: a row of cells that makes a pool of about two by one, in a power of two
// so that slabs begin at the start of a row.
pagedkv.scale = function (films) {
  const cells = films.find((film) => !film.slab);
  const slabs = films.find((film) => film.slab);
  if (!cells) return { rowSlots: Math.min(slabs.size * (slabs.elastic ? slabs.blocks : 1), 256), cellSlots: 16 };
  let columns = 8;
  while (columns < 64 && columns * columns < cells.blocks * 1.6) columns *= 2;
  return { rowSlots: columns * cells.size, cellSlots: cells.size };
};
