// What fits for other values than the plan's: the rules of kvsim/sizing/layout.py and
// kvsim/planning/capacity.py, on layouts that experiment/simulate/what_if.py made.
const NULL_BLOCKS = 1;
const DECODING = 1; // tokens in flight
const ANSWER = 8; // a request is this many times its answer

// The most blocks of a request of `length` tokens, over all groups.
pagedkv.requestBlocks = function (groups, length, inFlight) {
  const blocks = {
    full: (group) => Math.ceil(length / group.block_size),
    latent: (group) => Math.ceil(length / group.block_size),
    chunked: (group) => Math.ceil(Math.min(group.span + inFlight, length) / group.block_size),
    // One more: a window need not begin where a block does.
    window: (group) => Math.ceil(Math.min(group.span - 1 + inFlight, length) / group.block_size) + 1,
    state: (group) => group.states,
  };
  return groups.reduce((sum, group) => sum + group.count * blocks[group.kind](group), 0);
};

// The most blocks of a request while its prompt is computed in chunks, of which windows keep those in flight.
pagedkv.promptBlocks = function (groups, prompt, chunk, inFlight) {
  const ends = [Math.floor(prompt / chunk) * chunk, prompt].filter((end) => end > 0);
  return Math.max(...ends.map((end) => {
    const settled = Math.max(0, Math.ceil(end / chunk) * chunk - inFlight);
    return pagedkv.requestBlocks(groups, end, end - settled);
  }));
};

// What a pool of so many blocks holds: requests of `length` tokens, and what vLLM prints.
pagedkv.capacity = function (groups, blocks, length, maxLength, chunk, inFlight, sharedPrefix, known) {
  const largest = pagedkv.requestBlocks(groups, maxLength, inFlight);
  const each = pagedkv.requestBlocks(groups, length, DECODING);
  const usable = Math.max(0, blocks - NULL_BLOCKS);
  const [{ count, kind, block_size }] = groups;
  const sharing = groups.length === 1 && count === 1 && (kind === "full" || kind === "latent");
  const shared = sharing ? Math.floor(Math.min(sharedPrefix, length - 1) / block_size) : 0;
  const prompt = known || Math.max(1, length - Math.max(1, Math.floor(length / ANSWER)), sharedPrefix + 1);
  const more = Math.max(0, pagedkv.promptBlocks(groups, prompt, chunk, inFlight) - each);
  return {
    each,
    concurrency: blocks / largest,
    tokens: Math.floor((blocks / largest) * maxLength),
    starts: usable >= largest,
    requests: usable < each ? 0 : Math.floor(Math.max(0, usable - shared - more) / Math.max(1, each - shared)),
  };
};

(function () {
  "use strict";
  const root = document.getElementById("what-if");
  if (!root) return;
  const { plan } = JSON.parse(document.getElementById("run-data").textContent);
  let capacity, what;
  const teller = new pagedkv.Teller(JSON.parse(document.getElementById("what-if-texts").textContent));
  const sliders = pagedkv.sliders(root, show);
  const lines = [...root.querySelectorAll(".answers p")];

  function show() {
    if (!what) return;
    const at = {};
    for (const slider of sliders) {
      const value = what.positions[slider.name][slider.value];
      const text = typeof value === "number" ? pagedkv.WRITERS.count(value) : value;
      at[slider.name] = value;
      pagedkv.writeSlider(slider, text);
    }
    root.dispatchEvent(new CustomEvent("answered", { detail: at }));
    answer(at).forEach((said, i) => {
      lines[i].hidden = !said;
      if (said) teller.tell(lines[i], ...said);
    });
  }

  // Texts of the plan's own answer, as facts/plan.py chooses them.
  function answer({ context: length, users, block_size, kv_dtype }) {
    const { groups, blocks, block_bytes } = what.layouts[block_size][kv_dtype];
    const maxLength = Math.max(length, what.max_length || 0);
    const [low, middle, high] = ["low", "middle", "high"].map((size) =>
      pagedkv.capacity(groups, blocks[size], length, maxLength, what.chunk, what.in_flight, capacity.shared_prefix,
        length === what.start.context ? capacity.prompt : null));
    for (const size of [low, middle, high]) size.requests *= what.engines;
    const range = (name) => ({ low: low[name], middle: middle[name], high: high[name] });
    const seqs = capacity.max_num_seqs;
    const [least, most] = [low, high].map((size) => Math.min(size.requests, seqs * what.engines));
    const fits = users <= least ? "fit" : users <= most ? "perhaps" : "too_many";
    const share = middle.requests ? users / middle.requests : null;
    const prints = low.tokens === high.tokens ? "printed_exactly" : "printed";
    return [
      [low.requests === high.requests ? "exact" : "range", { length, ...range("requests") }],
      ["users_" + fits, { users, share, high: most }],
      middle.requests > seqs * what.engines ? ["limit_sequences", { seqs }] : null,
      [middle.starts ? prints : "never_starts",
        { version: capacity.version, length: maxLength, concurrency: middle.concurrency, ...range("tokens") }],
      ["request", { size: middle.each * block_bytes, blocks: middle.each }],
    ];
  }

  // Another plan for these sliders, which stay at their values or the next smaller ones.
  pagedkv.setPlan = function (other) {
    const { positions, start } = other.what_if;
    for (const slider of sliders) {
      const places = positions[slider.name];
      const value = what ? what.positions[slider.name][slider.value] : start[slider.name];
      slider.max = places.length - 1;
      slider.value = typeof value === "number" ? Math.max(0, places.findLastIndex((place) => place <= value)) : places.indexOf(value);
    }
    ({ capacity, what_if: what } = other);
    show();
  };
  if (plan) pagedkv.setPlan(plan);
})();
