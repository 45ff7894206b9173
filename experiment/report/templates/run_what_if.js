// A run's requests with other block sizes, maximum lengths and lengths: the rules of
// kvsim/core/request.py and kvsim/sizing/geometry.py, on what experiment/report/page/what_if.py embeds.

// Slots of each request at its end: K and V of the last token are never written.
pagedkv.finalLengths = function (requests, quarters) {
  return requests.map(([prompt, tokens]) => prompt + Math.ceil((tokens * quarters) / 4) - 1);
};

// From the growing cache (1) to the contiguous one (the maximum length).
pagedkv.blockSizes = function (own, maxLength) {
  const sizes = [own];
  for (let size = 1; size < maxLength; size *= 2) sizes.push(size);
  return [...new Set([...sizes.filter((size) => size < maxLength), maxLength])].sort((a, b) => a - b);
};

// All requests at their ends in blocks of one size, and how many of them, repeated in order, the budget holds.
pagedkv.inBlocks = function (lengths, block, slotBytes, budget) {
  const needs = lengths.map((length) => Math.ceil(length / block));
  const sum = needs.reduce((all, need) => all + need, 0);
  const blocks = Math.floor(budget / (block * slotBytes));
  let left = blocks % sum;
  const more = needs.findIndex((need) => (left -= need) < 0);
  return {
    block,
    bytes: sum * block * slotBytes,
    slots: sum * block,
    share: lengths.reduce((all, length) => all + length, 0) / (sum * block),
    fits: Math.floor(blocks / sum) * needs.length + more,
  };
};

(function () {
  "use strict";
  const root = document.getElementById("run-what-if");
  if (!root) return;
  const what = JSON.parse(document.getElementById("what-if-data").textContent);
  const teller = new pagedkv.Teller(what.texts);
  const [blockSlider, maxSlider, lengthSlider] = pagedkv.sliders(root, show);
  const [answer, cut] = root.querySelectorAll(".answers p");
  const cells = [...root.querySelectorAll("tbody td")];
  const svg = document.getElementById("what-if-chart");
  const { count, bytes, percent } = pagedkv.WRITERS;
  const share = (value) => (value < 0.01 ? `${pagedkv.fixed(value * 100, 2)}\u00a0%` : percent(value));
  const inBlocks = (lengths) => (size) => pagedkv.inBlocks(lengths, size, what.slot_bytes, what.budget);
  const asRun = pagedkv.blockSizes(what.start.block, what.start.max_length)
    .map(inBlocks(pagedkv.finalLengths(what.requests, what.start.quarters)));
  let onPaper = false;

  // Paper has no sliders: it shows the run's own settings.
  function show() {
    draw(onPaper ? what.start : read());
  }

  function read() {
    const maxLength = what.max_lengths[maxSlider.value];
    const sizes = pagedkv.blockSizes(what.start.block, maxLength);
    const contiguous = blockSlider.value === blockSlider.max;
    blockSlider.max = sizes.length - 1;
    if (contiguous) blockSlider.value = blockSlider.max;
    const at = { block: sizes[blockSlider.value], max_length: maxLength, quarters: what.quarters[lengthSlider.value] };
    pagedkv.writeSlider(blockSlider, count(at.block));
    pagedkv.writeSlider(maxSlider, count(at.max_length));
    pagedkv.writeSlider(lengthSlider, "×\u00a0" + at.quarters / 4);
    return at;
  }

  function draw({ block, max_length: maxLength, quarters }) {
    const asked = pagedkv.finalLengths(what.requests, quarters);
    const lengths = asked.map((length) => Math.min(length, maxLength));
    const columns = [1, block, maxLength].map(inBlocks(lengths));
    const rows = [["block", count], ["bytes", bytes], ["slots", count], ["share", share], ["fits", count]];
    rows.forEach(([name, writer], row) =>
      columns.forEach((column, place) => pagedkv.write(cells[row * columns.length + place], writer(column[name]))));
    const said = block === maxLength ? "one_block" : block === 1 ? "exact" : "saves";
    teller.tell(answer, said, { block, factor: columns[2].slots / columns[1].slots });
    const ended = asked.filter((length) => length > maxLength).length;
    teller.tell(cut, "cut", { n: ended });
    cut.hidden = !ended;
    plot(pagedkv.blockSizes(what.start.block, maxLength).map(inBlocks(lengths)), columns[1]);
  }

  // Live ÷ allocated over block sizes: now, at the run's own settings, and the slider's position.
  function plot(points, at) {
    const width = svg.parentNode.clientWidth || 760;
    const [left, right, top, bottom] = [52, width - 14, 24, 160];
    const most = Math.max(1, Math.log2(Math.max(points.at(-1).block, asRun.at(-1).block)));
    const x = (size) => left + ((right - left) * Math.log2(size)) / most;
    const y = (part) => bottom - (bottom - top) * part;
    const group = document.createElementNS(svg.namespaceURI, "g");
    const add = (name, attributes, text) => {
      const node = document.createElementNS(svg.namespaceURI, name);
      for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
      if (text) node.textContent = text;
      return group.appendChild(node);
    };
    const line = (several, kind) =>
      add("path", { d: "M" + several.map((one) => `${x(one.block)} ${y(one.share)}`).join("L"), class: kind });
    const dot = (one, r, kind) => add("circle", { cx: x(one.block), cy: y(one.share), r, class: kind });

    for (const part of [0, 0.5, 1]) {
      add("path", { d: `M${left} ${y(part)}H${right}`, class: part ? "grid" : "axis" });
      add("text", { x: left - 8, y: y(part) + 4, class: "t small end num" }, percent(part).replace(".0", ""));
    }
    const label = 8 + 7 * count(2 ** Math.floor(most)).length; // pixels
    const every = Math.ceil((label * most) / (right - left));
    for (let power = 0; power <= most; power += every) {
      add("text", { x: x(2 ** power), y: bottom + 20, class: "t small middle num" }, count(2 ** power));
    }
    add("text", { x: (left + right) / 2, y: bottom + 44, class: "t small soft middle" }, teller.say("block_size"));
    add("path", { d: `M${x(at.block)} ${top}V${bottom}`, class: "moment" });
    line(asRun, "as-run");
    line(points, "series s0");
    for (const one of points) dot(one, 4, "computed");
    for (const one of what.measured) {
      const name = document.createElementNS(svg.namespaceURI, "title");
      name.textContent = `${one.names[document.documentElement.lang]}: ${share(one.share)}`;
      dot(one, 4.5, "measured").append(name);
    }
    dot(at, 8, "at");
    const late = x(at.block) > right - 60;
    add("text", { x: x(at.block) + (late ? -4 : 10), y: y(at.share) - 12, class: "t strong num halo" + (late ? " end" : "") }, share(at.share));
    svg.setAttribute("viewBox", `0 0 ${width} 214`);
    svg.lastElementChild.replaceWith(group);
  }

  for (const [event, begins] of [["beforeprint", true], ["afterprint", false]]) {
    window.addEventListener(event, () => {
      onPaper = begins;
      show();
    });
  }
  new ResizeObserver(show).observe(svg.parentNode);
  show();
})();
