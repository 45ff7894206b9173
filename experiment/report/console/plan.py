"""A plan on the console: the answer in sentences, a table of policies, arguments for vLLM."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from experiment.analysis.metrics import METRICS
from experiment.report.console.simulation import SimulationConsole
from experiment.report.facts.simulation import memory_facts, trace_facts
from experiment.report.facts.simulation_figures import rounding_note
from experiment.report.facts.values import written
from experiment.simulate.names import DEFAULT_POLICIES
from experiment.text import format_bytes
from experiment.text.messages import Message, message
from kvsim.contiguous.reservation import POLICIES
from kvsim.sizing.vllm_capacity import GPU_BLOCK_MULTIPLE

Data = Mapping[str, Any]


def show_plan(data: Data, lang: str, ascii_only: bool) -> None:
    """Print the whole plan."""
    out = SimulationConsole(lang, ascii_only)
    if data["trace"] is not None:
        out.section("section.sim_trace")
        out.facts(trace_facts(data))
    out.section("section.sim_memory")
    out.facts(memory_facts(data))
    out.section("section.plan")
    for sentence in sentences(data):
        out.paragraph(out.t.message(sentence))
    _show_policies(out, data)
    _show_block_sizes(out, data)
    _show_vllm(out, data)


def sentences(data: Data) -> list[Message]:
    """The answer, plainly."""
    plan = data["plan"]
    paged, slabs = plan["policies"]["paged"], plan["policies"]["slabs"]
    said = [
        message(
            "plan.holds",
            running=paged["running"],
            guaranteed=paged["guaranteed"],
            request=paged["request_bytes"],
        ),
        message(
            "plan.contiguous",
            length=plan["max_length"],
            slabs=slabs["guaranteed"],
            factor=paged["running"] / slabs["running"],
            running=paged["running"],
            needed=paged["running"] * slabs["request_bytes"],
            budget=plan["budget"]["kv"],
        ),
        *_preemption(data),
    ]
    if plan["too_long"]:
        said.append(message("plan.too_long", n=plan["too_long"], length=plan["max_length"]))
    if plan["left_out"]:
        said.append(message("plan.left_out", n=plan["left_out"]))
    return said


def _preemption(data: Data) -> list[Message]:
    plan, load = data["plan"], data["load"]
    if not plan["full_at"]:
        return [message("plan.no_rate")]
    source = message(f"plan.latency_{data['setup']['latency']['source']}").model_dump()
    said = [message("plan.full_at", rate=plan["full_at"], source=source)]
    if load is None:
        return said
    if load["running"] is None:
        return [*said, message("plan.over", rate=load["rate"])]
    if load["running"] <= 1:
        return [*said, message("plan.idle", rate=load["rate"])]
    return [*said, message("plan.under", **load)]


def _show_policies(out: SimulationConsole, data: Data) -> None:
    plan, t = data["plan"], out.t
    policies = plan["policies"]
    names = sorted(policies, key=DEFAULT_POLICIES.index)
    paged = policies["paged"]["running"]
    rows = [
        (t("metric.running"), [written(policies[n]["running"], "mean") for n in names]),
        (t("plan.row.guaranteed"), [written(policies[n]["guaranteed"], "count") for n in names]),
        (t("plan.row.request"), [format_bytes(policies[n]["request_bytes"]) for n in names]),
        (
            t("plan.row.needed"),
            [format_bytes(policies[n]["request_bytes"] * paged) for n in names],
        ),
        (
            t.message(METRICS["live_of_pool"].label),
            [written(policies[n]["live"], "share") for n in names],
        ),
        (t("plan.row.rounding"), [written(_rounding(policies[n], plan), "share") for n in names]),
    ]
    out.figures(t("plan.title"), names, rows)
    out.line(t("plan.about"), "dim")
    if note := rounding_note(names):
        out.line(t.message(note), "dim")
    for name in names:
        if policies[name]["reason"]:
            why = message(f"plan.reason.{policies[name]['reason']}")
            out.line_of(name, why, "yellow")
    out.line(t("plan.no_guarantee", policy=", ".join(POLICIES)), "dim")


def _rounding(policy: Data, plan: Data) -> float | None:
    """Share of the pool that rounding up to a power of two took, while more requests wait."""
    if policy["reason"]:
        return None
    pool, slots = policy["pool"], plan["budget"]["kv"] // plan["bytes_per_token"]
    return float(pool["rounding"] / slots) if pool else 0.0


def _show_block_sizes(out: SimulationConsole, data: Data) -> None:
    t, plan = out.t, data["plan"]
    rows = [
        (
            f"{demand['block_size']}"
            + (" *" if demand["block_size"] == plan["block_size"] else ""),
            [written(demand["tail_share"], "share"), written(demand["blocks"], "mean")],
        )
        for demand in plan["block_sizes"]
    ]
    heads = [t("metric.waste"), t("plan.block.blocks")]
    out.figures(t("metric.block_size"), heads, rows)
    out.line(t("plan.block.about"), "dim")


def _show_vllm(out: SimulationConsole, data: Data) -> None:
    """Ready to be pasted: no line is broken by us."""
    plan, t = data["plan"], out.t
    out.section("section.plan_vllm")
    args = plan["vllm_args"]
    if not args:
        out.paragraph(t("plan.no_block_size", multiple=GPU_BLOCK_MULTIPLE))
        return
    pairs = [" ".join(args[index : index + 2]) for index in range(0, len(args), 2)]
    command = " \\\n  ".join(["vllm serve " + args[1], *pairs[1:]])
    out.console.print(command, soft_wrap=True)
    out.paragraph(t.message(_foretold(plan)))
    budget = plan["budget"]
    if budget["utilisation"] is not None and plan["printed"] is not None:
        exact = budget["kv"] // plan["gpus"]
        out.paragraph(t("plan.if_same", kv=budget["kv"], exact=exact), "dim")


def _foretold(plan: Data) -> Message:
    """What vLLM will print of its cache, or why that is not known."""
    printed = plan["printed"]
    if printed is None:
        return message("plan.unknown_window", layers=plan["geometry"]["sliding_layers"])
    return message(
        "plan.printed" if printed["starts"] else "plan.never_starts",
        tokens=printed["tokens"],
        length=plan["max_length"],
        concurrency=printed["max_concurrency"],
        blocks=printed["blocks"],
    )
