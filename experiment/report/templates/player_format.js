// Formats the player's numbers and sentences as Python does, and writes them into the page.
pagedkv.write = function (node, text) {
  if (node.said === text) return;
  node.said = text;
  const only = node.firstChild;
  if (only && only === node.lastChild && only.nodeType === Node.TEXT_NODE) only.data = text;
  else node.textContent = text;
};

// A tie goes to the even digit, where toFixed takes the larger one.
pagedkv.fixed = function (value, digits) {
  const scaled = value * 10 ** digits;
  const low = Math.floor(scaled);
  const tie = Number.isInteger(value * 2 ** (digits + 1)) && scaled - low === 0.5;
  return (tie && low % 2 === 0 ? low / 10 ** digits : value).toFixed(digits);
};

// Made once: toLocaleString looks its rules up for every number, which was half of a frame's script.
pagedkv.GROUPED = [0, 1, 2].map((digits) => new Intl.NumberFormat("en-US", { minimumFractionDigits: digits, maximumFractionDigits: digits }));

pagedkv.grouped = function (value, digits) {
  return pagedkv.GROUPED[digits].format(Number(pagedkv.fixed(value, digits)));
};

pagedkv.WRITERS = {
  count: (value) => pagedkv.GROUPED[0].format(Math.round(value)),
  percent: (value) => pagedkv.fixed(value * 100, 1) + "\u00a0%",

  bytes: (value) => {
    for (const [unit, scale] of [["GiB", 2 ** 30], ["MiB", 2 ** 20], ["KiB", 2 ** 10]]) {
      if (value >= (scale * 1000) / 1024) {
        const scaled = value / scale;
        const digits = Number.isInteger(scaled) ? 0 : scaled >= 100 ? 1 : 2;
        return pagedkv.grouped(scaled, digits) + "\u00a0" + unit;
      }
    }
    return pagedkv.grouped(value, 0) + "\u00a0B";
  },

  // Three digits at least: milliseconds below one second.
  seconds: (value) => {
    if (!value) return "0\u00a0s";
    if (value >= 0.9995) return (value < 100 ? pagedkv.fixed(value, 2) : pagedkv.grouped(value, 0)) + "\u00a0s";
    const digits = [99.95, 9.995, 0.9995].filter((limit) => value * 1000 < limit).length;
    return pagedkv.fixed(value * 1000, digits) + "\u00a0ms";
  },
};

// What the player says in the language of the page.
pagedkv.Teller = class {
  constructor(texts) {
    this.texts = texts;
  }

  say(key, values) {
    const text = this.texts[document.documentElement.lang][key] || key;
    return text.replace(/\{(\w+)(?::(\w+))?\}/g, (whole, name, writer) => {
      const value = (values || {})[name];
      if (value === null || value === undefined) return "—";
      return writer ? pagedkv.WRITERS[writer](value) : String(value);
    });
  }

  // A sentence of the catalogue with its numbers.
  tell(node, name, values) {
    pagedkv.write(node, this.say(name, values));
  }
};
