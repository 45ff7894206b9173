"""Inputs of a simulation as labels and values: trace, memory, limits; for console and page."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from typing import Any

from experiment.report.facts.texts import said
from experiment.text import Translator
from experiment.text.messages import Message, message
from experiment.workload.kvsim_errors import rejected_message
from kvsim.latency.roofline import IDEAL

Fact = tuple[Message, Message | str]
Data = Mapping[str, Any]


def _fact(name: str, value: Message | str) -> Fact:
    return message(f"sim.fact.{name}"), value


def _message_fact(name: str, /, **params: Any) -> Fact:
    return _fact(name, message(f"sim.fact.{name}_value", **params))


def fact_lines(t: Translator, facts: Iterable[Fact]) -> list[str]:
    """A line per fact."""
    named = ((t.message(name), said(t, value)) for name, value in facts)
    return [t("console.problem", arm=name, text=text) for name, text in named]


def trace_facts(data: Data) -> list[Fact]:
    """Source of the requests, and all changes to them."""
    trace, facts = data["trace"], data["facts"]
    return [
        _fact("trace", trace["name"]),
        *_kind(trace),
        *_amounts(trace, facts),
        *_edits(trace),
        *_left_out(data),
        *_identity(data),
    ]


def _kind(trace: Data) -> Iterator[Fact]:
    source = message(f"sim.source.{trace['format_source']}").model_dump()
    if trace["format"] == "generated":
        yield _fact("format", message("sim.fact.generated"))
    else:
        yield _message_fact("format", name=trace["format"], source=source)
    if trace["unit"] is None:
        yield _fact("unit", message("sim.fact.no_clock"))
    elif trace["unit"] == "date":
        yield _fact("unit", message("sim.fact.dates"))
    elif trace["format"] != "generated" and not _has_drawn_arrivals(trace):
        source = message(f"sim.source.{trace['unit_source']}").model_dump()
        yield _message_fact("unit", unit=trace["unit"], source=source)
    if doubt := trace.get("unit_doubt"):
        value = message(f"sim.fact.doubt_{doubt}_value", unit=trace["unit"])
        yield _fact("unit_doubt", value)
    if trace["block_size"] is not None:
        source = message(f"sim.source.{trace['block_size_source']}").model_dump()
        yield _message_fact("hash_blocks", size=trace["block_size"], source=source)


def _has_drawn_arrivals(trace: Data) -> bool:
    return any(edit["kind"] == "with_arrivals" for edit in trace["edits"])


def _amounts(trace: Data, facts: Data) -> Iterator[Fact]:
    count = facts["requests"]
    rejected = sum(each["count"] for each in trace["rejected"])
    yield _message_fact("rows", rows=trace["rows"], rejected=rejected, requests=count)
    yield _message_fact(
        "lengths",
        prompt=facts["prompt_tokens"] / count,
        output=facts["output_tokens"] / count,
        longest=facts["longest"],
    )
    span = (trace["span_ns"] or 0) / 1e9
    if span and count > 1:
        yield _message_fact("arrivals", span=span, rate=(count - 1) / span)
    else:
        yield _fact("arrivals", message("sim.fact.all_at_once"))


def _edits(trace: Data) -> Iterator[Fact]:
    for edit in trace["edits"]:
        yield _fact("edit", message(f"sim.edit.{edit['kind']}", **edit["params"]))


def _left_out(data: Data) -> Iterator[Fact]:
    trace = data["trace"]
    for each in trace["rejected"]:
        yield _fact("rejected", rejected_message(each))
    for name, count in trace["ignored"].items():
        yield _fact("ignored", message(f"sim.ignored.{name}", count=count))
    if trace["unread_rows"]:
        yield _fact("ignored", message("sim.ignored.rows_behind"))
    if data["texts"]:
        yield _fact("tokens", message("sim.fact.gpt2_tokens"))
    drawn = trace["parameters"]
    for name in ("redrawn_for_max_length", "raised_to_one_token"):
        if drawn.get(name):
            yield _fact("edit", message(f"sim.ignored.{name}", count=drawn[name]))


def seed_of(data: Data) -> int | None:
    """Seed of a synthetic trace, else of the run's sampling; None if nothing is sampled."""
    drawn: int | None = data["trace"]["seed"]
    return data["setup"].get("seed") if drawn is None else drawn


def _identity(data: Data) -> Iterator[Fact]:
    trace, seed = data["trace"], seed_of(data)
    if trace["sha256"]:
        yield _fact("sha256", trace["sha256"])
    if seed is not None:
        yield _fact("seed", str(seed))
    provenance = trace["parameters"].get("provenance") or {}
    if provenance:
        yield _fact("shapes", message("sim.fact.shapes_value"))


def memory_facts(data: Data) -> list[Fact]:
    """Computation of the number of blocks from the GPU's memory."""
    setup = data["setup"]
    model, gpu, budget = setup["model"], setup["gpu"], setup["budget"]
    layers = layers_of(setup)
    facts = [
        _model(model),
        _message_fact("gpu", name=gpu["name"], gpus=setup["gpus"], memory=budget["memory"]),
        *(_layers(row, setup, alone=len(layers) == 1) for row in layers),
    ]
    if setup["kv_copies"] > 1:
        facts.append(
            _message_fact("copies", copies=f"{setup['kv_copies']:g}", slot=setup["slot_bytes"])
        )
    groups = data.get("plan") if data.get("plan", {}).get("memory") else None
    spans = [row for row in layers if row["span"]]
    if spans and "plan" not in data:
        counted = sum(row["layers"] for row in spans)
        facts.append(_message_fact("window", layers=counted, window=spans[0]["span"]))
    facts += _budget(budget)
    if groups:
        facts += _groups(groups)
    else:
        facts.append(
            _message_fact(
                "blocks",
                slots=setup["slots"],
                blocks=setup["blocks"],
                size=setup["block_size"],
                block=setup["block_bytes"],
            )
        )
    source = message(f"sim.source.{setup['max_length_source']}").model_dump()
    facts.append(_message_fact("max_length", length=setup["max_length"], source=source))
    return facts


def _model(model: Data) -> Fact:
    """The model with its number of weights, or their bytes if given."""
    if model["parameters"] is None:
        return _fact("model", message("sim.fact.model_bytes", **model))
    return _message_fact(
        "model", name=model["name"], parameters=model["parameters"], dtype=model["dtype"]
    )


_CACHING = {True: "sim.fact.caching_on", False: "sim.fact.caching_off"}
_LAYERS = {
    "full": "layers_full",
    "window": "layers_window",
    "chunked": "layers_chunked",
    "latent": "layers_latent",
    "indexer": "layers_indexer",
    "state": "layers_state",
}


def layers_of(setup: Data) -> list[Data]:
    """Cache of the layers, a row for each kind; older records have one kind."""
    if "layers" in setup:
        return list(setup["layers"])
    old = setup["geometry"]
    tensors, heads, head = old["tensors"], old["kv_heads"], old["head_dim"]
    row = {
        "token_bytes": tensors * heads * head * old["element_bytes"],
        "shape": (heads, head, head)[: 1 + tensors], "span": 0, "states": 1,
        "kind": "full" if tensors == 2 else "latent",
    }  # fmt: skip
    slide = old["sliding_layers"]
    rows = [row | {"layers": old["layers"] - slide}]
    if slide:
        rows.append(row | {"layers": slide, "kind": "window", "span": old["window"]})
    return [row for row in rows if row["layers"]]


def _layers(row: Data, setup: Data, *, alone: bool) -> Fact:
    """Bytes of the layers of one kind; with ``alone``, how they are computed."""
    kind, shape = row["kind"], row["shape"]
    if not alone or kind not in ("full", "latent") or len(set(shape[1:])) > 1:
        return _message_fact(_LAYERS[kind], layers=row["layers"], bytes=row["token_bytes"],
                     span=row["span"])  # fmt: skip
    tensors = len(shape) - 1
    return _message_fact(
        "slot",
        tensors=tensors,
        layers=row["layers"],
        heads=shape[0],
        head_dim=shape[1],
        element=row["token_bytes"] // (tensors * shape[0] * shape[1]),
        slot=setup["bytes_per_token"],
        dtype=setup["kv_dtype"],
    )


def _groups(plan: Data) -> Iterator[Fact]:
    """vLLM's pool of groups."""
    layout = plan["layout"]
    sizes = sorted({group["layers"] for group in layout["groups"]})
    blocks = sorted({group["block_size"] for group in layout["groups"]})
    yield _message_fact(
        "groups",
        groups=len(layout["groups"]),
        layers=" / ".join(map(str, sizes)),
        padding=layout["padding_layers"],
        sizes=" / ".join(f"{size:,}" for size in blocks),
    )
    vllm = plan["vllm"]
    yield _message_fact(
        "served",
        tokens=vllm["max_num_batched_tokens"],
        steps=2 if vllm["async_scheduling"] else 1,
        caching=message(_CACHING[vllm["prefix_caching"]]).model_dump(),
    )
    yield _message_fact("pool", blocks=plan["blocks"], block=layout["block_bytes"])
    if plan["fixed_bytes"]:
        yield _message_fact("fixed", bytes=plan["fixed_bytes"])


def _budget(budget: Data) -> Iterator[Fact]:
    if budget["usable"] is None:
        yield _fact("budget", message("sim.fact.budget_given", kv=budget["kv"]))
        return
    yield _message_fact(
        "budget",
        share=budget["utilisation"],
        **{name: budget[name] for name in ("usable", "weights", "overhead", "kv")},
    )
    if budget.get("low") is None:  # a record from before
        return
    yield _message_fact("range", low=budget["low"], high=budget["high"])
    if "overhead" in budget["assumed"]:
        for name, (low, middle, high) in budget["parts"].items():
            if name != "weights":
                value = message("sim.fact.part_value", low=low, middle=middle, high=high)
                yield message(f"sim.overhead.{name}"), value


def limit_facts(data: Data) -> list[Fact]:
    """Limits of a step, generation, and step times."""
    setup = data["setup"]
    limits = setup["limits"]
    facts = [
        _message_fact(
            "limits",
            seqs=limits["max_num_seqs"],
            tokens=limits["max_num_batched_tokens"],
            watermark=limits["watermark_blocks"],
        )
    ]
    if limits["long_prefill_token_threshold"]:
        facts.append(_message_fact("long_prefill", tokens=limits["long_prefill_token_threshold"]))
    if limits["preemption"] == "swap":
        facts.append(_fact("preemption", message("sim.fact.swap_value", size=limits["swap_bytes"])))
    else:
        facts.append(_fact("preemption", message("sim.preemption.recompute")))
    if setup["beams"] > 1:
        facts.append(
            _message_fact(
                "beams", n=setup["beams"], branching=setup["branching"], seed=setup["seed"]
            )
        )
    elif (setup["samples"] or data["facts"]["samples"]) > 1:
        facts.append(_message_fact("samples", n=setup["samples"] or data["facts"]["samples"]))
    latency = setup["latency"]
    # Before efficiencies were recorded, all were 1.
    shares = latency.get("efficiencies") or asdict(IDEAL)
    given = shares if latency["source"] == "roofline" else {}
    facts.append(_fact("latency", message(f"sim.fact.latency_{latency['source']}", **given)))
    return facts


def refusals(data: Data) -> Iterator[tuple[str, Message]]:
    """Policies that refused requests, with number and reason."""
    for cell in data["cells"]:
        for each in (cell["result"] or {"requests": {"refused": ()}})["requests"]["refused"]:
            why = message(
                f"refusal.{each['reason']}", needed=each["needed"], available=each["available"]
            )
            yield (
                cell["policy"],
                message("sim.refused", n=each["count"], first=each["first"], why=why.model_dump()),
            )
