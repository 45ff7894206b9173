// The planner: a choice of model, GPU and number of GPUs; the sliders are those of a plan.
(function () {
  "use strict";
  const data = JSON.parse(document.getElementById("run-data").textContent).planner;
  const teller = new pagedkv.Teller(data.texts);
  const choices = ["model", "gpu", "gpus"].map((name) => document.getElementById("choice-" + name));
  const [reason, budget, serve, answers] = ["reason", "budget", "serve", "what-if"].map((id) => document.getElementById(id));

  const values = () => choices.map((choice) => choice.value);

  function found() {
    const [model, gpu, count] = values();
    return data.plans[model][gpu][data.counts.indexOf(Number(count))];
  }

  // As experiment/simulate/plan.py makes it.
  function planOf(one) {
    const [model] = values();
    const sizes = Object.entries(one.layouts).map(([size, dtypes]) => [size, Object.fromEntries(
      dtypes.map(([number, low, middle, high], i) => [data.kv_dtype[i], { ...data.layouts[number], blocks: { low, middle, high } }]))]);
    return {
      capacity: { shared_prefix: 0, max_num_seqs: one.max_num_seqs, version: data.version },
      what_if: {
        positions: { context: data.context[model], users: data.users, block_size: Object.keys(one.layouts).map(Number), kv_dtype: data.kv_dtype },
        start: one.start,
        engines: 1,
        chunk: one.chunk,
        in_flight: one.in_flight,
        max_length: null,
        layouts: Object.fromEntries(sizes),
      },
    };
  }

  // A message of the catalogue, which may hold another one.
  function message({ key, params }) {
    const inner = Object.entries(params).map(([name, value]) => [name, value && value.key ? message(value) : value]);
    return teller.say(key, Object.fromEntries(inner));
  }

  function explain() {
    const one = found();
    reason.hidden = !one.reason;
    answers.hidden = Boolean(one.reason);
    if (one.reason) pagedkv.write(reason, message(one.reason));
    else teller.tell(budget, "plan.answer.memory", one.budget);
  }

  // The words of vllm_arguments in kvsim/planning/plan.py.
  function command({ detail: at }) {
    const [model, , count] = values();
    const options = [["max-model-len", at.context], ["block-size", at.block_size]];
    if (count > 1) options.push(["tensor-parallel-size", count]);
    if (at.kv_dtype === "fp8") options.push(["kv-cache-dtype", "fp8"]);
    options.push(["gpu-memory-utilization", data.utilisation]);
    pagedkv.write(serve, ["vllm serve " + data.hub[model], ...options.map(([name, value]) => `--${name} ${value}`)].join(" \\\n  "));
  }

  function choose() {
    const one = found();
    explain();
    if (!one.reason) pagedkv.setPlan(planOf(one));
    history.replaceState(null, "", "#" + new URLSearchParams(choices.map((choice) => [choice.id.slice(7), choice.value])));
  }

  const asked = new URLSearchParams(location.hash.slice(1));
  choices.forEach((choice, i) => {
    choice.value = data.start[i];
    const wish = asked.get(choice.id.slice(7));
    if ([...choice.options].some((option) => option.value === wish)) choice.value = wish;
    choice.addEventListener("change", choose);
  });
  answers.addEventListener("answered", command);
  new MutationObserver(explain).observe(document.documentElement, { attributes: true, attributeFilter: ["lang"] });
  choose();
})();
